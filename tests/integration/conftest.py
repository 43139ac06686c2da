from tests.support.botocore_models import models_are_read_once, no_session_stays

__all__ = ["models_are_read_once", "no_session_stays"]
