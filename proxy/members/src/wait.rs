//! Waits until an object in an API server satisfies a condition, using a watch and a deadline.

use crate::Error;
use futures::TryStreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

/// Returns the object, or `Some(None)` if it does not exist, once the condition holds; None after the timeout. An interrupted
/// watch is restarted; if it cannot be restarted before the timeout, its error is returned.
pub(crate) async fn until<K>(
    api: &Api<K>,
    name: &str,
    timeout: Duration,
    condition: impl Fn(Option<&K>) -> bool,
) -> Result<Option<Option<K>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let problem = || format!("cannot watch {} {name}", K::kind(&()).to_lowercase());
    let mut objects = pin!(watch_object(api.clone(), name).default_backoff());
    let mut last_error = None;
    let waiting = async {
        loop {
            match objects.try_next().await {
                Ok(Some(object)) => {
                    last_error = None;
                    if condition(object.as_ref()) {
                        return Ok(object);
                    }
                }
                Ok(None) => {
                    return Err(Error::WatchEnded {
                        resource: "an object",
                        reason: "the stream of events is closed".to_owned(),
                    });
                }
                Err(error) => match retry_after_error(error) {
                    ControlFlow::Break(error) => return Err(Error::kube(problem(), error)),
                    ControlFlow::Continue(error) => last_error = error,
                },
            }
        }
    };
    match tokio::time::timeout(timeout, waiting).await {
        Ok(reached) => reached.map(Some),
        Err(_) => match last_error {
            Some(error) => Err(Error::kube(problem(), error)),
            None => Ok(None),
        },
    }
}

/// Decides whether a watch is restarted after an error. A forbidden watch fails immediately.
pub(crate) fn retry_after_error(error: watcher::Error) -> ControlFlow<kube::Error, Option<kube::Error>> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => match &error {
            kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404 | 405) => ControlFlow::Break(error),
            _ => ControlFlow::Continue(Some(error)),
        },
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => ControlFlow::Continue(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn object(value: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "resourceVersion": "2"},
            "data": {"is": value}})
    }

    fn list(items: &[Value]) -> (u16, String) {
        let list =
            json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": items});
        (200, list.to_string())
    }

    fn events(events: &[(&str, Value)]) -> (u16, String) {
        let line = |(kind, object): &(&str, Value)| format!("{}\n", json!({"type": kind, "object": object}));
        (200, events.iter().map(line).collect())
    }

    fn refusal(code: u16) -> (u16, String) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code});
        (code, status.to_string())
    }

    /// A watch that stays open without events.
    fn idle_watch() -> (u16, String) {
        (0, String::new())
    }

    /// A server that sends one response after the other and repeats the last one.
    fn config_maps(responses: Vec<(u16, String)>) -> Api<ConfigMap> {
        let (responses, requests) = (Arc::new(responses), Arc::new(AtomicUsize::new(0)));
        let service = tower::service_fn(move |_: Request<Body>| {
            let (responses, nth) = (Arc::clone(&responses), requests.fetch_add(1, Ordering::SeqCst));
            async move {
                let (code, body) = responses[nth.min(responses.len() - 1)].clone();
                if code == 0 {
                    std::future::pending::<()>().await;
                }
                Response::builder().status(code).body(Body::from(body.into_bytes()))
            }
        });
        Api::namespaced(kube::Client::new(service, "default"), "default")
    }

    fn has_value(expected: &str) -> impl Fn(Option<&ConfigMap>) -> bool {
        move |object| object.and_then(|object| object.data.as_ref()?.get("is")).is_some_and(|value| value == expected)
    }

    #[rstest]
    #[case::already_satisfied(vec![list(&[object("right")])], Ok(Some(true)))]
    #[case::satisfied_later(vec![list(&[object("wrong")]), events(&[("MODIFIED", object("right"))])], Ok(Some(true)))]
    #[case::after_a_broken_watch(
        vec![list(&[]), refusal(500), events(&[("ADDED", object("right"))])], Ok(Some(true)))]
    #[case::never(vec![list(&[object("wrong")]), idle_watch()], Ok(None))]
    #[case::forbidden(vec![refusal(403)], Err("cannot watch configmap c"))]
    #[case::never_restarted(vec![refusal(500)], Err("cannot watch configmap c"))]
    #[tokio::test]
    async fn waiting_ends_with_the_condition_the_timeout_or_an_error(
        #[case] responses: Vec<(u16, String)>,
        #[case] expected: Result<Option<bool>, &str>,
    ) {
        // Longer than the delay before an interrupted watch is restarted.
        let waited = until(&config_maps(responses), "c", Duration::from_secs(2), has_value("right")).await;
        let waited = waited.map(|reached| reached.map(|object| object.is_some())).map_err(|error| error.to_string());
        assert_eq!(waited, expected.map_err(str::to_owned));
    }

    #[tokio::test]
    async fn waiting_for_a_deletion_ends_with_it() {
        let api = config_maps(vec![list(&[object("there")]), events(&[("DELETED", object("there"))])]);
        let waited = until(&api, "c", Duration::from_secs(60), |object| object.is_none()).await;
        assert!(matches!(waited, Ok(Some(None))));
    }
}
