//! The API groups of this server and their resources, and the routes to them. Has no side effects.

use std::fmt;

use crowsnest_api::aggregated_groups::ApiGroup;
use crowsnest_apimachinery::request::RequestInfo;
use serde_json::{Map, Value};

use super::{Definition, Paths, Resource};
use crate::{
    access_crowsnest_io, cluster_karmada_io, custom_metrics_k8s_io, metrics_k8s_io, propagation_crowsnest_io,
    search_crowsnest_io, search_karmada_io,
};

/// The groups of this server.
pub static REGISTRY: Registry = Registry {
    groups: &[
        cluster_karmada_io::GROUP,
        search_karmada_io::GROUP,
        search_crowsnest_io::GROUP,
        propagation_crowsnest_io::GROUP,
        access_crowsnest_io::GROUP,
        metrics_k8s_io::GROUP,
        custom_metrics_k8s_io::GROUP,
    ],
};

/// API groups.
pub struct Registry {
    pub groups: &'static [Group],
}

/// An API group with its resources.
pub struct Group {
    pub api: &'static ApiGroup,
    pub resources: &'static [&'static dyn Resource],
    /// Schemas that several resources refer to.
    pub schemas: fn() -> Map<String, Value>,
}

/// API version of Crowsnest's groups and of Karmada's.
pub const VERSION: &str = "v1alpha1";

/// Route of a path.
#[derive(Debug, Clone, Copy)]
pub enum Route {
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(&'static Group),
    /// `/apis/GROUP/VERSION`
    Resources(&'static Group, &'static str),
    Resource(ResourceRoute),
    /// `/openapi/v2`, `/openapi/v3…`
    OpenApi,
    Health,
    Unknown,
}

/// Resource of a request path. Positions are offsets in the raw path.
#[derive(Clone, Copy)]
pub struct ResourceRoute {
    pub group: &'static Group,
    pub resource: &'static dyn Resource,
    /// Start of the path after the version.
    start: usize,
    /// Start of the path below the object.
    subpath: usize,
}

impl Registry {
    /// Groups that are served, those of metrics only if `metrics` is true.
    pub fn groups(&self, metrics: bool) -> impl Iterator<Item = &'static Group> + use<> {
        self.groups.iter().filter(move |group| metrics || !group.api.is_metrics)
    }

    /// Finds the route of a raw path.
    pub fn route(&self, path: &str) -> Route {
        match path {
            "/apis" | "/apis/" => return Route::Groups,
            "/healthz" | "/livez" | "/readyz" => return Route::Health,
            _ if path.starts_with("/openapi/") => return Route::OpenApi,
            _ => {}
        }
        self.route_below_apis(path).unwrap_or(Route::Unknown)
    }

    fn route_below_apis(&self, path: &str) -> Option<Route> {
        let (name, rest) = split_segment(path.strip_prefix("/apis/")?);
        let group = self.groups.iter().find(|group| group.api.name == name)?;
        let (version, resource_path) = split_segment(rest.strip_prefix('/').unwrap_or_default());
        if version.is_empty() {
            return Some(Route::Group(group));
        }
        let (version, _) = group.api.versions.iter().find(|(known, _)| *known == version)?;
        if matches!(resource_path, "" | "/") {
            return Some(Route::Resources(group, version));
        }
        let start = path.len() - resource_path.len();
        group.resources.iter().find_map(|resource| {
            let end = resource.locate(resource_path)?;
            Some(Route::Resource(ResourceRoute { group, resource: *resource, start, subpath: start + end }))
        })
    }
}

impl Group {
    pub const fn new(api: &'static ApiGroup, resources: &'static [&'static dyn Resource]) -> Self {
        Self { api, resources, schemas: Map::new }
    }

    /// Plural and kind of each resource whose objects the control plane keeps.
    pub fn stored_kinds(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let stored = self.resources.iter().filter(|resource| resource.stored_group().is_some());
        let definitions = stored.map(|resource| resource.definition());
        definitions
            .filter(|definition| definition.subresource.is_empty())
            .map(|definition| (definition.resource, definition.kind))
    }
}

impl Route {
    /// The route to a resource; `None` for other routes.
    pub fn resource_route(&self) -> Option<&ResourceRoute> {
        match self {
            Self::Resource(found) => Some(found),
            _ => None,
        }
    }

    /// True for discovery and OpenAPI, which all authenticated users may read.
    pub fn is_discovery(&self) -> bool {
        matches!(self, Self::Groups | Self::Group(_) | Self::Resources(..) | Self::OpenApi)
    }

    /// Name of the route in spans, without the names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Groups => "/apis",
            Self::Group(_) => "/apis/{group}",
            Self::Resources(..) => "/apis/{group}/{version}",
            Self::Resource(found) => found.resource.definition().route,
            Self::OpenApi => "/openapi",
            Self::Health => "/healthz",
            Self::Unknown => "unknown",
        }
    }
}

impl ResourceRoute {
    /// The path after the version (`/clusters/m1/status`).
    pub fn resource_path<'p>(&self, path: &'p str) -> &'p str {
        path.get(self.start..).unwrap_or_default()
    }

    /// The path below the object: empty, or starting with a slash.
    pub fn subpath<'p>(&self, path: &'p str) -> &'p str {
        path.get(self.subpath..).unwrap_or_default()
    }

    /// True if the parsed attributes, which are used for authorization, name this resource.
    pub fn agrees_with(&self, info: &RequestInfo) -> bool {
        let Definition { resource, subresource, paths, .. } = self.resource.definition();
        let has_subresource =
            !(subresource.is_empty() && matches!(paths, Paths::ObjectAndSubpaths | Paths::SubpathsOf(_)));
        info.group == self.group.api.name
            && (resource.is_empty() || info.resource == *resource)
            && (resource.is_empty() || !has_subresource || info.subresource == *subresource)
    }
}

impl fmt::Debug for ResourceRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}..{}", self.group.api.name, self.resource.definition().name(), self.start, self.subpath)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.api.name)
    }
}

/// Splits a path at its first slash, which begins the second part.
fn split_segment(path: &str) -> (&str, &str) {
    path.find('/').map_or((path, ""), |at| path.split_at(at))
}
