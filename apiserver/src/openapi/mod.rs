//! OpenAPI v2 and v3 documents from the typed schemas.

use axum::body::Body;

use crate::http::Response;
use crate::registry::catalog::Served;

/// Answers `/openapi/<parts>`; `None` is 404.
pub fn serve(_served: &Served, _request: &http::Request<Body>, _parts: &[&str]) -> Option<Response> {
    None
}
