//! `/openapi/v2` and `/openapi/v3`, generated from the same schemas that patch and apply use.
