//! Serves the embedded files of the UI. Clients that accept Brotli receive the copies that the build compressed; other
//! responses are compressed when they are sent. Paths without a dot return the main page, because the browser routes
//! views.

use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use crowsnest_apimachinery::http_headers::{accepts_coding, has_current_etag};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::StatusResponse;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use rust_embed::{EmbeddedFile, RustEmbed};
use tower_http::compression::CompressionLayer;

use crowsnest_process::reply::Body;

#[derive(RustEmbed)]
#[folder = "$CROWSNEST_WEB_DIR"]
struct Files;

/// Suffix of the copy of a file that the build compresses with Brotli (`web/vite.config.ts`).
const BROTLI_SUFFIX: &str = ".br";

/// Serves GET requests of pages and files.
pub fn service<S: Clone + Send + Sync + 'static>() -> MethodRouter<S> {
    get(page).layer(CompressionLayer::new())
}

async fn page(uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let is_asset = path.rsplit('/').next().is_some_and(|name| name.contains('.'));
    let file_path = if is_asset { path } else { "index.html" };
    let file = if file_path.ends_with(BROTLI_SUFFIX) { None } else { Files::get(file_path) };
    let Some(file) = file else { return StatusCode::NOT_FOUND.into_response() };
    let Ok(tag) = HeaderValue::try_from(weak_etag(&file)) else {
        return ApiError::internal("invalid ETag").into_response();
    };
    let is_unchanged = has_current_etag(&headers, tag.as_bytes());
    let brotli_copy = if !is_unchanged && accepts_coding(&headers, "br") {
        Files::get(&format!("{file_path}{BROTLI_SUFFIX}"))
    } else {
        None
    };
    let is_brotli = brotli_copy.is_some();
    let data = brotli_copy.unwrap_or(file).data;
    let mut response = Response::new(if is_unchanged { Body::empty() } else { Body::from(data) });
    let response_headers = response.headers_mut();
    if is_brotli {
        response_headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
    }
    let content_type = match file_path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript",
        "css" => "text/css",
        "svg" => "image/svg+xml",
        "json" => "application/json",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    };
    response_headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    // Names below assets/ contain a content hash (Vite); browsers revalidate all others.
    let cache = if file_path.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    response_headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    response_headers.insert(header::ETAG, tag);
    response_headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if is_unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    response
}

/// A weak ETag, which is the same for all encodings.
fn weak_etag(file: &EmbeddedFile) -> String {
    let hash = file.metadata.sha256_hash();
    let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("W/\"{hex}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    async fn send_get(path: &str, headers: &[(header::HeaderName, &str)]) -> Response {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        service::<()>().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn size(response: Response) -> usize {
        response.into_body().collect().await.unwrap().to_bytes().len()
    }

    #[tokio::test]
    async fn pages_are_compressed_and_revalidated() {
        for path in Files::iter().filter(|path| !path.ends_with(".woff2") && !path.ends_with(BROTLI_SUFFIX)) {
            let address = format!("/{path}");
            let plain = send_get(&address, &[]).await;
            assert!(!plain.headers().contains_key(header::CONTENT_ENCODING), "{path}");
            let compressed = send_get(&address, &[(header::ACCEPT_ENCODING, "gzip")]).await;
            assert_eq!(compressed.headers()[header::CONTENT_ENCODING], "gzip", "{path}");
            let smallest = send_get(&address, &[(header::ACCEPT_ENCODING, "gzip, deflate, br, zstd")]).await;
            let has_brotli_copy = Files::get(&format!("{path}{BROTLI_SUFFIX}")).is_some();
            let expected = if has_brotli_copy { "br" } else { "zstd" };
            assert_eq!(smallest.headers()[header::CONTENT_ENCODING], expected, "{path}");
            assert_eq!(plain.headers()[header::ETAG], compressed.headers()[header::ETAG], "{path}");
            assert_eq!(plain.headers()[header::ETAG], smallest.headers()[header::ETAG], "{path}");
            for response in [&plain, &compressed, &smallest] {
                let vary: Vec<_> = response.headers().get_all(header::VARY).iter().collect();
                assert_eq!(vary, ["accept-encoding"], "{path}");
                let cache = response.headers()[header::CACHE_CONTROL].to_str().unwrap();
                let immutable = "public, max-age=31536000, immutable";
                assert_eq!(cache, if path.starts_with("assets/") { immutable } else { "no-cache" }, "{path}");
            }
            let tag = plain.headers()[header::ETAG].to_str().unwrap().to_owned();
            let (plain, compressed, smallest) = (size(plain).await, size(compressed).await, size(smallest).await);
            assert!(compressed < plain || plain < 200, "{path}: {compressed} of {plain} bytes");
            assert!(smallest < plain || plain < 200, "{path}: {smallest} of {plain} bytes");

            let tags = format!("\"other\", {tag}");
            let revalidated = send_get(&address, &[(header::IF_NONE_MATCH, tags.as_str())]).await;
            assert_eq!(revalidated.status(), StatusCode::NOT_MODIFIED, "{path}");
            assert_eq!(revalidated.headers()[header::ETAG], tag.as_str(), "{path}");
            assert_eq!(size(revalidated).await, 0, "{path}");
            let changed = send_get(&address, &[(header::IF_NONE_MATCH, "W/\"other\"")]).await;
            assert_eq!(changed.status(), StatusCode::OK, "{path}");
        }
    }

    #[tokio::test]
    async fn paths_of_views_return_the_page() {
        let (page, view) = (send_get("/", &[]).await, send_get("/object?cluster=a", &[]).await);
        assert_eq!(page.headers()[header::ETAG], view.headers()[header::ETAG]);
        for missing in ["/assets/none.js", "/index.html.br"] {
            assert_eq!(send_get(missing, &[]).await.status(), StatusCode::NOT_FOUND, "{missing}");
        }
    }
}
