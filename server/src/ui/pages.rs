//! The embedded files of the UI. Unknown paths without a dot get the page itself: routing happens in the browser.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, Uri, header};
use rust_embed::RustEmbed;

use crate::aggregated::reply::Body;

#[derive(RustEmbed)]
#[folder = "$CROWSNEST_WEB_DIR"]
struct Files;

/// Any GET that is no API.
pub(crate) async fn page(uri: Uri) -> Response {
    let path = uri.path().trim_start_matches('/');
    let asset = path.rsplit('/').next().is_some_and(|name| name.contains('.'));
    let wanted = if asset { path } else { "index.html" };
    let Some(file) = Files::get(wanted) else { return StatusCode::NOT_FOUND.into_response() };
    let mut response = Response::new(Body::from(file.data.into_owned()));
    let kind = match wanted.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript",
        "css" => "text/css",
        "svg" => "image/svg+xml",
        "json" => "application/json",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // Vite puts a content hash into the names below assets/.
    let cache = if wanted.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}
