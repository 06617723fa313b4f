//! `search/cache`: Karmada's read-only access to the cache.

use crowsnest_apimachinery::request::Query;
use crowsnest_index::Object;
use futures::StreamExt;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::json;

use super::View;
use crate::native::NativePath;
use crate::object::{Form, annotate};
use crate::options::ListOptions;
use crate::{Body, BoxError, Caller, Error, Proxy, full};

impl Proxy {
    /// Lists the objects of all clusters, also for a name: several clusters may have an object with it.
    pub(crate) async fn search(
        &self,
        caller: &Caller,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        if request.method() != Method::GET {
            return Err(Error::MethodNotAllowed);
        }
        let native =
            NativePath::parse(path).filter(|native| native.subresource.is_empty()).ok_or(Error::UnknownResource)?;
        let query = Query::parse(request.uri().query());
        // Options are validated first. Field selectors and limits are ignored.
        let options = ListOptions::parse(&query, query.flag("watch"), false);
        let options = options.map_err(|error| Error::InvalidCacheOptions(error.list_options_message()))?;
        let options = ListOptions { fields: None, ..options };
        let cache = &self.inner.cache;
        let view = match View::for_request(cache, &native, caller, None).await {
            Some(view) => view.without_namespace_filters(),
            None => View::empty(cache, &native, caller).await,
        };
        let kind = view.kind(cache).ok_or(Error::UnknownResource)?;
        let head = json!({"apiVersion": native.resource.api_version(), "kind": format!("{kind}List"), "metadata": {}});
        if !native.name.is_empty() {
            let mut found = self.find_all_named(&view, &native).await?;
            found.retain(|object| view.allows(&object.record));
            self.report_clusters(&request, || found.iter().map(|object| object.record.key.cluster().clone()).collect());
            let found = found.iter().map(encode_object).collect::<Result<Vec<_>, _>>()?;
            return Ok(json_response(full([list_head(&head).as_bytes(), &found.join(&b","[..]), b"]}"].concat())));
        }
        self.report_clusters(&request, || view.readable_clusters(cache));
        let view = view.select(options)?;
        let queries: Vec<_> = view.clusters(cache).iter().filter_map(|cluster| view.query(cluster)).collect();
        let cache = cache.clone();
        let objects = futures::stream::iter(queries).flat_map(move |query| cache.list(query).boxed());
        let allowed = move |object: &Result<Object, _>| {
            futures::future::ready(object.as_ref().map_or(true, |object| view.allows(&object.record)))
        };
        let items = objects.filter(allowed).enumerate().map(|(n, object)| {
            let mut item = encode_object(&object?)?;
            if n > 0 {
                item.insert(0, b',');
            }
            Ok::<_, BoxError>(Frame::data(item.into()))
        });
        let chunk = |text: String| futures::stream::iter([Ok::<_, BoxError>(Frame::data(text.into()))]);
        let all = chunk(list_head(&head)).chain(items).chain(chunk("]}".to_owned()));
        Ok(json_response(StreamBody::new(all).boxed_unsync()))
    }
}

/// The beginning of the list, up to its first item.
fn list_head(head: &serde_json::Value) -> String {
    let head = head.to_string();
    format!("{},\"items\":[", &head[..head.len() - 1])
}

/// The object with the annotation of its cluster.
fn encode_object(object: &Object) -> Result<Vec<u8>, serde_json::Error> {
    annotate(&object.body, object.record.key.cluster().as_str(), None, Form::Full)
}

fn json_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let content_type = HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
