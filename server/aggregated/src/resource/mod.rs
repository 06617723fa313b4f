//! Resources of the aggregated groups.
//!
//! A resource is a [`HandledResource`] or a type that implements [`Resource`], in a file of its own, and one entry in
//! the list of its group. Routes, the attributes that are authorized, discovery and OpenAPI documents derive from these
//! lists ([`registry`]).

pub mod discovery;
pub mod openapi;
pub mod registry;
pub mod schema;
pub mod table;
#[cfg(test)]
mod tests;

use axum::extract::Request;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;
use http::Method;
use serde_json::Value;

use self::openapi::Document;

use crate::request::context::RequestContext;
use crate::server::AggregatedServer;
use crate::stored::StoredGroup;

/// A resource or subresource that this server serves.
///
/// Methods return boxed futures with one lifetime. The lifetime bounds of `async_trait` would prevent the compiler from
/// caching the proof that the server is `Send`. Proving it for each implementation took 90 seconds.
pub trait Resource: Send + Sync {
    fn definition(&self) -> &Definition;

    /// Length of the part of `resource_path` that names the resource and its object; `None` if the path does not lead to the
    /// resource. `resource_path` is the raw path after the version (`/clusters/m1`).
    fn locate(&self, resource_path: &str) -> Option<usize> {
        self.definition().locate(resource_path)
    }

    /// The group under which objects are read and written, if they are kept in the control plane.
    fn stored_group(&self) -> Option<StoredGroup> {
        None
    }

    /// True if lists and watches apply a field selector, so that permission for the selected name is sufficient.
    fn applies_field_selector(&self) -> bool {
        self.stored_group().is_some()
    }

    /// True for requests without a time limit that do not count as in flight: watches of resources that can be watched.
    fn is_long_running(&self, requested: RequestFeatures) -> bool {
        requested.watch && self.definition().verbs.contains(&"watch")
    }

    /// Entries of the discovery document.
    fn discover<'a>(&'a self, _server: &'a AggregatedServer) -> BoxFuture<'a, Vec<Value>> {
        Box::pin(async move { vec![self.definition().discovery()] })
    }

    /// Adds paths and schemas to the OpenAPI document of the group in this version. The control plane describes the
    /// objects that it keeps.
    fn describe(&self, _version: &str, _document: &mut Document) {}

    /// Handles a request whose caller has been authorized for it.
    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>>;
}

/// Handler of the requests for a resource; see [`Resource::serve`].
pub type Handler = for<'r> fn(Call<'r>) -> BoxFuture<'r, Result<Response, ApiError>>;

/// A resource whose requests a function handles.
pub struct HandledResource {
    pub definition: Definition,
    /// See [`Resource::describe`].
    pub describe: fn(&Definition, &mut Document),
    pub handler: Handler,
}

impl HandledResource {
    /// A resource without paths in the OpenAPI document of its group.
    pub const fn new(definition: Definition, handler: Handler) -> Self {
        Self { definition, describe: |_, _| {}, handler }
    }
}

impl Resource for HandledResource {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        (self.describe)(&self.definition, document);
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        (self.handler)(call)
    }
}

/// A request for a resource.
pub struct Call<'r> {
    pub server: &'r AggregatedServer,
    pub context: &'r RequestContext,
    pub request: Request,
}

/// Members that a request is forwarded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Members {
    None,
    /// The member with the object's name; `*` means all.
    Named,
    All,
}

/// Object for the admission of a request with the operation CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// Options of this kind, with the path below the object.
    Options(&'static str),
    /// Admission receives no object.
    NoOptions,
}

/// Features that a client requests with the query and headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestFeatures {
    /// The verb is `watch`.
    pub watch: bool,
    /// Upgrade of the connection.
    pub upgrade: bool,
    /// Server-sent events.
    pub events: bool,
}

/// Names, scope, verbs and paths of a resource, and what its requests connect to.
#[derive(Debug)]
pub struct Definition {
    /// Plural; empty if the resources are only known at run time.
    pub resource: &'static str,
    /// Empty for the resource itself.
    pub subresource: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    pub verbs: &'static [&'static str],
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub paths: Paths,
    /// Name of the route in spans, the same for all objects.
    pub route: &'static str,
    /// Members that requests are forwarded to, with the path below the object.
    pub members: Members,
    /// Admission of requests that connect to the object instead of reading or writing it; `None` for other resources.
    pub connect: Option<Connect>,
}

/// Paths of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paths {
    /// No path. The resource is only listed in discovery documents.
    DiscoveryOnly,
    Collection,
    Object,
    CollectionAndObject,
    /// An object, and the path of another API below it.
    ObjectAndSubpaths,
    /// As `ObjectAndSubpaths`, for the object of this name only.
    SubpathsOf(&'static str),
}

pub const GET: &[&str] = &["get"];
pub const CREATE: &[&str] = &["create"];
pub const LIST: &[&str] = &["list"];
pub const READ: &[&str] = &["get", "list"];
pub const CONNECT: &[&str] = &["create", "delete", "get", "patch", "update"];
pub const STORED: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

impl Definition {
    /// A cluster-scoped resource with this plural and kind, whose name in spans is its plural.
    pub const fn new(resource: &'static str, kind: &'static str, verbs: &'static [&'static str], paths: Paths) -> Self {
        Self {
            resource,
            subresource: "",
            singular: "",
            kind,
            namespaced: false,
            verbs,
            short_names: &[],
            categories: &[],
            paths,
            route: resource,
            members: Members::None,
            connect: None,
        }
    }

    /// Name in discovery, such as `clusters/status`.
    pub fn name(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    fn discovery(&self) -> Value {
        let mut value = serde_json::json!({
            "name": self.name(), "singularName": self.singular, "namespaced": self.namespaced, "kind": self.kind, "verbs": self.verbs,
        });
        if !self.short_names.is_empty() {
            value["shortNames"] = serde_json::json!(self.short_names);
        }
        if !self.categories.is_empty() {
            value["categories"] = serde_json::json!(self.categories);
        }
        value
    }

    /// See [`Resource::locate`]. Compares raw segments, so a path with a percent-encoded resource is not found.
    fn locate(&self, resource_path: &str) -> Option<usize> {
        let (mut resource, mut rest) = next_segment(resource_path);
        let is_namespaced_path = self.namespaced && resource == "namespaces";
        if is_namespaced_path {
            let (namespace, after) = next_segment(rest);
            if namespace.is_empty() {
                return None;
            }
            (resource, rest) = next_segment(after);
        }
        if resource != self.resource {
            return None;
        }
        let (name, mut below) = next_segment(rest);
        if name.is_empty() {
            let ends_in_slash = self.paths == Paths::CollectionAndObject && below.is_empty();
            let is_collection = self.subresource.is_empty() && (rest.is_empty() || ends_in_slash);
            let has_collection = matches!(self.paths, Paths::Collection | Paths::CollectionAndObject);
            return (is_collection && has_collection).then_some(resource_path.len());
        }
        if self.namespaced && !is_namespaced_path {
            return None;
        }
        if !self.subresource.is_empty() {
            let (subresource, after) = next_segment(below);
            if subresource != self.subresource {
                return None;
            }
            below = after;
        }
        let found = match self.paths {
            Paths::DiscoveryOnly | Paths::Collection => false,
            Paths::Object => below.is_empty(),
            Paths::CollectionAndObject => matches!(below, "" | "/"),
            Paths::ObjectAndSubpaths => true,
            Paths::SubpathsOf(only) => name == only,
        };
        found.then(|| resource_path.len() - below.len())
    }

    /// True if a verb of the resource has this method.
    pub fn has_method(&self, method: &Method) -> bool {
        self.verbs.iter().any(|verb| {
            let verb_method = match *verb {
                "create" => Method::POST,
                "update" => Method::PUT,
                "patch" => Method::PATCH,
                "delete" | "deletecollection" => Method::DELETE,
                _ => Method::GET,
            };
            *method == verb_method
        })
    }
}

/// The first segment of a path that starts with a slash, and the rest: empty, or starting with a slash.
fn next_segment(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.find('/').map_or((path, ""), |at| path.split_at(at))
}
