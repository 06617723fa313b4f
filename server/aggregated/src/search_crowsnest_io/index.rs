//! `index`: the index of text search, for operators. GET returns its state, compared with the store if `verify` is set;
//! POST starts to fill a new one. Responses contain no data of objects.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_index::{Error, GlobalCache};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::parameters::Parameters;
use super::{API_VERSION, definition};
use crate::resource::{Call, Definition, HandledResource};
use crowsnest_process::reply::json as reply;

/// Maximum number of objects that one request compares.
const MAX_SAMPLES: usize = 10_000;

pub(super) static TEXT_INDEX: HandledResource =
    HandledResource::new(Definition { verbs: &["create", "list"], ..definition("index", "SearchIndex") }, |call| {
        Box::pin(show_or_rebuild(call))
    });

async fn show_or_rebuild(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let cache = &server.running()?.cache;
    if request.method() == Method::GET {
        return show(cache, Parameters::new(context.query()).number_in("verify", 0..=MAX_SAMPLES)?).await;
    }
    match cache.searcher().rebuild_text_index().await {
        Ok(()) => Ok(reply(StatusCode::ACCEPTED, &state(cache).await?)),
        Err(error @ Error::RebuildNotSupported) => Err(ApiError::bad_request(error.to_string())),
        Err(error) => Err(ApiError::unavailable(error.chain())),
    }
}

async fn show(cache: &GlobalCache, samples: Option<usize>) -> Result<Response, ApiError> {
    let mut body = state(cache).await?;
    if let Some(samples) = samples {
        let found =
            cache.searcher().verify_text_index(samples, &mut rand::random::<f64>).await.map_err(ApiError::internal)?;
        body["verification"] = serde_json::to_value(&found).map_err(ApiError::internal)?;
    }
    Ok(reply(StatusCode::OK, &body))
}

async fn state(cache: &GlobalCache) -> Result<Value, ApiError> {
    let status = cache.status().await.map_err(ApiError::internal)?;
    Ok(json!({
        "kind": "SearchIndex",
        "apiVersion": API_VERSION,
        "backend": status.backend,
        "seq": status.seq,
        "searchable": status.searchable,
        "behind": status.lag,
        "trouble": status.index_error,
        "bytes": status.index_bytes,
        "writer": status.index_writer,
    }))
}
