//! Client for untyped objects of one API server.

use std::time::Duration;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::path_segment;
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::Error;
use crate::runtime::write_fence::{ClockReading, Fence};

/// A resource as needed to address requests: group, version, plural name, kind and scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    pub gvr: Gvr,
    pub kind: String,
    pub namespaced: bool,
}

impl Resource {
    /// The resource of a typed API.
    pub fn of<K: crowsnest_api::Kind>() -> Self {
        Resource {
            gvr: Gvr::for_type::<K>(),
            kind: K::KIND.to_owned(),
            namespaced: K::SCOPE == crowsnest_api::Scope::Namespaced,
        }
    }

    /// A built-in resource by its names.
    pub fn builtin(group: &str, version: &str, resource: &str, kind: &str, namespaced: bool) -> Self {
        Resource { gvr: Gvr::new(group, version, resource), kind: kind.to_owned(), namespaced }
    }

    fn path(&self, namespace: &str, name: &str, subresource: Option<&str>) -> String {
        let namespace = (self.namespaced && !namespace.is_empty()).then_some(namespace);
        let mut path = self.gvr.path(namespace);
        let name = Some(name).filter(|name| !name.is_empty());
        for part in name.into_iter().chain(subresource) {
            path.push('/');
            path.push_str(&path_segment(part));
        }
        path
    }
}

/// Target of a request.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub resource: &'a Resource,
    pub namespace: &'a str,
    pub name: &'a str,
    /// `None` for the object itself.
    pub subresource: Option<&'static str>,
}

impl<'a> Target<'a> {
    pub fn new(resource: &'a Resource, namespace: &'a str, name: &'a str) -> Self {
        Target { resource, namespace, name, subresource: None }
    }

    pub fn status(self) -> Self {
        Target { subresource: Some("status"), ..self }
    }

    pub fn scale(self) -> Self {
        Target { subresource: Some("scale"), ..self }
    }

    fn path(&self) -> String {
        self.resource.path(self.namespace, self.name, self.subresource)
    }
}

impl std::fmt::Display for Target<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}/{}", self.resource.gvr.resource, self.namespace, self.name)?;
        self.subresource.map_or(Ok(()), |subresource| write!(formatter, " ({subresource})"))
    }
}

/// Query of a dry run with strict field validation, as in kubectl.
const DRY_RUN: &str = "?dryRun=All&fieldValidation=Strict&fieldManager=crowsnest-plan";

/// Client for untyped objects of one API server, like client-go's dynamic client. Cheap to clone.
#[derive(Clone)]
pub struct DynamicClient {
    client: Client,
    fence: Fence,
    /// Time within which a request must be completed. `None`: unlimited.
    response_timeout: Option<Duration>,
}

impl DynamicClient {
    /// A client without a fence.
    pub fn new(client: Client) -> Self {
        Self::with_fence(client, Fence::default())
    }

    /// A client that rejects writes once `fence` has ended.
    pub fn with_fence(client: Client, fence: Fence) -> Self {
        DynamicClient { client, fence, response_timeout: None }
    }

    /// Aborts each request whose response is not complete within `timeout` with [`Error::Timeout`]. The API server may
    /// have applied an aborted write.
    pub fn with_response_timeout(self, timeout: Duration) -> Self {
        DynamicClient { response_timeout: Some(timeout), ..self }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    async fn send(&self, method: Method, path: &str, content_type: &str, body: Option<&Value>) -> Result<Value, Error> {
        let operation = format!("{method} {path}");
        let bytes = match body {
            None => Vec::new(),
            Some(body) => {
                serde_json::to_vec(body).map_err(|source| Error::Decode { object: operation.clone(), source })?
            }
        };
        let writes = method != Method::GET && !path.contains("dryRun=All");
        let now = ClockReading::now();
        if writes && !self.fence.is_open(now) || self.fence.has_ended(now) {
            return Err(Error::Fenced(operation));
        }
        let mut request = Request::builder().method(method).uri(path).header("Accept", "application/json");
        if body.is_some() {
            request = request.header("Content-Type", content_type);
        }
        let request =
            request.body(bytes).map_err(|error| Error::request(operation.clone(), kube::Error::HttpError(error)))?;
        let response = self.receive(&operation, request);
        match self.fence.can_end() {
            false => response.await,
            // Requests in progress are aborted: the remaining lease time is for writes that cannot be cancelled, and
            // without a response the controllers would not stop for minutes.
            true => tokio::select! {
                result = response => result,
                () = self.fence.wait_for_end() => Err(Error::Fenced(operation.clone())),
            },
        }
    }

    /// Sends a request and receives the response within the response timeout.
    async fn receive(&self, operation: &str, request: Request<Vec<u8>>) -> Result<Value, Error> {
        let response = self.client.request(request);
        let result = match self.response_timeout {
            None => response.await,
            Some(after) => match timeout(after, response).await {
                Ok(result) => result,
                Err(_) => return Err(Error::Timeout { operation: operation.to_owned(), after }),
            },
        };
        result.map_err(|source| Error::request(operation, source))
    }

    /// Returns `None` if the object does not exist.
    pub async fn get(&self, target: Target<'_>) -> Result<Option<Value>, Error> {
        match self.send(Method::GET, &target.path(), "", None).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The response to a GET of a path with its query, such as metrics.
    pub async fn read(&self, path: &str) -> Result<Value, Error> {
        self.send(Method::GET, path, "", None).await
    }

    pub async fn create(&self, resource: &Resource, namespace: &str, object: &Value) -> Result<Value, Error> {
        let path = resource.path(namespace, "", None);
        self.send(Method::POST, &path, "application/json", Some(object)).await
    }

    /// Creates in a dry run. Returns the object that would be stored.
    pub async fn dry_run_create(&self, resource: &Resource, namespace: &str, object: &Value) -> Result<Value, Error> {
        let path = resource.path(namespace, "", None) + DRY_RUN;
        self.send(Method::POST, &path, "application/json", Some(object)).await
    }

    /// Replaces in a dry run. Returns the object that would be stored.
    pub async fn dry_run_replace(&self, target: Target<'_>, object: &Value) -> Result<Value, Error> {
        self.send(Method::PUT, &(target.path() + DRY_RUN), "application/json", Some(object)).await
    }

    /// Replaces the object. Conflicts if another client has changed it since it was read.
    pub async fn replace(&self, target: Target<'_>, object: &Value) -> Result<Value, Error> {
        self.send(Method::PUT, &target.path(), "application/json", Some(object)).await
    }

    /// Deletes in a dry run.
    pub async fn dry_run_delete(&self, target: Target<'_>) -> Result<(), Error> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
            "dryRun": ["All"]});
        let path = target.path() + "?dryRun=All";
        self.send(Method::DELETE, &path, "application/json", Some(&options)).await.map(drop)
    }

    /// Applies a JSON merge patch.
    pub async fn merge(&self, target: Target<'_>, patch: &Value) -> Result<Value, Error> {
        self.send(Method::PATCH, &target.path(), "application/merge-patch+json", Some(patch)).await
    }

    /// Deletes in the background: dependents are left to the garbage collector. An object that does not exist is not
    /// an error.
    pub async fn delete(&self, target: Target<'_>) -> Result<(), Error> {
        self.delete_with(target, "Background", None).await
    }

    /// Deletes in the foreground: the object exists until its dependents are deleted.
    pub async fn delete_after_dependents(&self, target: Target<'_>) -> Result<(), Error> {
        self.delete_with(target, "Foreground", None).await
    }

    /// Deletes, if the object still has the given resourceVersion.
    pub async fn delete_at(&self, target: Target<'_>, resource_version: Option<&str>) -> Result<(), Error> {
        self.delete_with(target, "Background", resource_version).await
    }

    async fn delete_with(&self, target: Target<'_>, policy: &str, version: Option<&str>) -> Result<(), Error> {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy});
        if let Some(version) = version {
            options["preconditions"] = json!({"resourceVersion": version});
        }
        match self.send(Method::DELETE, &target.path(), "application/json", Some(&options)).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::ClusterName;
    use crowsnest_component_base::requests::RequestCounters;
    use crowsnest_members::{Connection, ConnectionSpec, EndpointRules, MemberRoute, Tunnels};
    use http::Response;
    use kube::client::Body;
    use rstest::rstest;
    use std::convert::Infallible;
    use tokio::sync::mpsc;

    /// An API server that reports the methods of requests and never responds.
    fn silent_server() -> (Client, mpsc::UnboundedReceiver<Method>) {
        let (methods, received) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let sent = methods.send(request.method().clone());
            async move {
                sent.expect("a listener");
                std::future::pending::<Result<Response<Body>, Infallible>>().await
            }
        });
        (Client::new(service, "default"), received)
    }

    fn things() -> Resource {
        Resource::builtin("example.com", "v1", "things", "Thing", true)
    }

    async fn send_request(objects: DynamicClient, method: Method) -> Result<(), Error> {
        match method {
            Method::GET => objects.get(Target::new(&things(), "a", "b")).await.map(drop),
            _ => objects.create(&things(), "a", &json!({})).await.map(drop),
        }
    }

    #[rstest]
    #[tokio::test]
    async fn requests_in_progress_end_with_the_fence(#[values(Method::GET, Method::POST)] method: Method) {
        let (client, mut received) = silent_server();
        let fence = Fence::closed();
        fence.extend(ClockReading::now(), Duration::from_secs(3600));
        let objects = DynamicClient::with_fence(client, fence.clone());
        let request_task = tokio::spawn(send_request(objects.clone(), method.clone()));
        assert_eq!(received.recv().await, Some(method.clone()));
        fence.close();
        assert!(matches!(request_task.await.unwrap(), Err(Error::Fenced(_))));
        // No further request is sent.
        assert!(matches!(send_request(objects, method).await, Err(Error::Fenced(_))));
        assert!(received.is_empty());
    }

    #[rstest]
    #[tokio::test]
    async fn requests_without_a_response_time_out(
        #[values(Method::GET, Method::POST)] method: Method,
        #[values(false, true)] fenced: bool,
    ) {
        let (client, mut received) = silent_server();
        let fence = if fenced { Fence::closed() } else { Fence::default() };
        if fenced {
            fence.extend(ClockReading::now(), Duration::from_secs(3600));
        }
        let objects = DynamicClient::with_fence(client, fence).with_response_timeout(Duration::from_millis(20));
        let error = send_request(objects, method.clone()).await.expect_err("no response");
        assert!(error.is_timeout() && error.has_unknown_outcome() && error.needs_event(), "{error}");
        let path = match method {
            Method::GET => "/apis/example.com/v1/namespaces/a/things/b",
            _ => "/apis/example.com/v1/namespaces/a/things",
        };
        assert_eq!(error.to_string(), format!("{method} {path}: no complete response within 20ms"));
        assert_eq!(received.recv().await, Some(method));
    }

    #[tokio::test]
    async fn a_connection_that_is_not_accepted_in_time_is_a_timeout() {
        // A proxy that never responds.
        let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let spec = ConnectionSpec {
            cluster: ClusterName::parse("m1").unwrap(),
            endpoint: "http://127.0.0.1:1".parse().unwrap(),
            ca_bundle: None,
            insecure_skip_tls_verification: false,
            token: None,
            proxy_url: Some(format!("http://{}", proxy.local_addr().unwrap()).parse().unwrap()),
            proxy_header: http::HeaderMap::new(),
            route: MemberRoute::Direct,
        };
        let rules = EndpointRules { allow_local: true, allow_plain_http: true };
        let (tunnels, requests) = (Tunnels::default(), RequestCounters::default());
        let member = Connection::open(spec, Duration::ZERO, &tunnels, &requests, rules).unwrap();
        let error = send_request(DynamicClient::new(member.client()), Method::GET).await.expect_err("no connection");
        assert!(error.is_timeout() && error.needs_event(), "{error}");
        let discovery = crowsnest_members::discovery::discover(&member.client()).await.map_err(Error::from);
        assert!(discovery.is_err_and(|error| error.is_timeout()));
    }

    #[tokio::test]
    async fn with_a_closed_fence_reads_are_sent_and_writes_rejected() {
        let (client, mut received) = silent_server();
        let objects = DynamicClient::with_fence(client, Fence::closed());
        assert!(matches!(send_request(objects.clone(), Method::POST).await, Err(Error::Fenced(_))));
        let request_task = tokio::spawn(send_request(objects, Method::GET));
        assert_eq!(received.recv().await, Some(Method::GET));
        request_task.abort();
    }
}
