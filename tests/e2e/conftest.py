from tests.support.botocore_models import models_are_read_once

__all__ = ["models_are_read_once"]
