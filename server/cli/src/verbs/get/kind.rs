//! Resolves resource arguments: `pods`, `po`, `Deployment`, `deployments.apps`, `deployments.v1.apps`. Has no side effects.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_members::{ApiResource, ApiResources};

/// A resource that can be displayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) gvr: Gvr,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
}

impl Kind {
    /// Resolves a resource argument; `None` if no served resource matches. Full names win over short names, preferred
    /// versions over others.
    pub(crate) fn resolve(argument: &str, served: &ApiResources) -> Option<Self> {
        let argument = argument.to_lowercase();
        let (name, rest) =
            argument.split_once('.').map_or((argument.as_str(), None), |(name, rest)| (name, Some(rest)));
        let is_readable = |resource: &ApiResource| resource.verbs.contains("list") && resource.verbs.contains("get");
        let is_in = |resource: &ApiResource| {
            let (group, version) = (&*resource.gvr.group, &*resource.gvr.version);
            rest.is_none_or(|rest| rest == group || rest.split_once('.') == Some((version, group)))
        };
        let preferred = served.preferred_versions();
        let all: Vec<&ApiResource> = preferred.into_iter().chain(&served.resources).collect();
        let mut matching = all.into_iter().filter(|resource| is_readable(resource) && is_in(resource));
        let has_full_name = |resource: &ApiResource| {
            let singular = [resource.singular.to_lowercase(), resource.kind.to_lowercase()];
            *resource.gvr.resource == *name || singular.iter().any(|singular| singular == name)
        };
        let has_short_name = |resource: &ApiResource| resource.short_names.iter().any(|short| short == name);
        let found = matching
            .clone()
            .find(|resource| has_full_name(resource))
            .or_else(|| matching.find(|resource| has_short_name(resource)))?;
        Some(Self { gvr: found.gvr.clone(), kind: found.kind.clone(), namespaced: found.namespaced })
    }

    /// The resource of this name, or the resources of a category such as `all`.
    pub(crate) fn resolve_all(argument: &str, served: &ApiResources) -> Vec<Self> {
        if let Some(kind) = Self::resolve(argument, served) {
            return vec![kind];
        }
        let category = argument.to_lowercase();
        let preferred = served.preferred_versions().into_iter();
        let matches = preferred.filter(|resource| resource.is_listable() && resource.categories.contains(&category));
        matches
            .map(|resource| Self {
                gvr: resource.gvr.clone(),
                kind: resource.kind.clone(),
                namespaced: resource.namespaced,
            })
            .collect()
    }

    /// Name with group, `deployments.apps`.
    pub(crate) fn name(&self) -> String {
        self.gvr.group_resource()
    }

    /// Singular name with group, `deployment.apps`.
    pub(crate) fn singular(&self) -> String {
        let kind = self.kind.to_lowercase();
        if self.gvr.group.is_empty() { kind } else { format!("{kind}.{}", self.gvr.group) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn resource(group: &str, version: &str, plural: &str, kind: &str, short: &str, preferred: bool) -> ApiResource {
        ApiResource {
            gvr: Gvr::new(group, version, plural),
            kind: kind.to_owned(),
            singular: kind.to_lowercase(),
            short_names: vec![short.to_owned()],
            categories: Vec::new(),
            namespaced: true,
            verbs: BTreeSet::from(["get".to_owned(), "list".to_owned()]),
            subresources: BTreeSet::new(),
            preferred,
        }
    }

    #[test]
    fn categories_are_expanded() {
        let mut jobs = resource("batch", "v1", "jobs", "Job", "", true);
        let mut pods = resource("", "v1", "pods", "Pod", "po", true);
        for resource in [&mut jobs, &mut pods] {
            resource.categories = vec!["all".to_owned()];
            resource.verbs.insert("watch".to_owned());
        }
        let nodes = resource("", "v1", "nodes", "Node", "no", true);
        let served = ApiResources { resources: vec![nodes, pods, jobs], stale: BTreeSet::new() };
        let resolve_names =
            |argument: &str| Kind::resolve_all(argument, &served).iter().map(Kind::name).collect::<Vec<_>>();
        assert_eq!(resolve_names("all"), ["pods", "jobs.batch"]);
        assert_eq!(resolve_names("no"), ["nodes"]);
        assert_eq!(resolve_names("nosuch"), Vec::<String>::new());
    }

    #[rstest::rstest]
    #[case("pods", Some("v1 pods"))]
    #[case("po", Some("v1 pods"))]
    #[case("Pod", Some("v1 pods"))]
    #[case("pods.v1.", Some("v1 pods"))]
    #[case("deploy", Some("apps/v1 deployments"))]
    #[case("deployments.apps", Some("apps/v1 deployments"))]
    #[case("deployments.v1beta1.apps", Some("apps/v1beta1 deployments"))]
    #[case("deployments.v2.apps", None)]
    #[case("event", Some("v1 events"))]
    #[case("events.events.k8s.io", Some("events.k8s.io/v1 events"))]
    #[case::whole_names_first("ev", Some("example.io/v1 ev"))]
    #[case("bindings", None)]
    #[case("nosuch", None)]
    fn resource_arguments_are_resolved(#[case] argument: &str, #[case] expected: Option<&str>) {
        let mut bindings = resource("", "v1", "bindings", "Binding", "", true);
        bindings.verbs = BTreeSet::from(["create".to_owned()]);
        let served = ApiResources {
            resources: vec![
                resource("", "v1", "pods", "Pod", "po", true),
                bindings,
                resource("", "v1", "events", "Event", "ev", true),
                resource("events.k8s.io", "v1", "events", "Event", "ev", true),
                resource("apps", "v1beta1", "deployments", "Deployment", "deploy", false),
                resource("apps", "v1", "deployments", "Deployment", "deploy", true),
                resource("example.io", "v1", "ev", "Ev", "", true),
            ],
            stale: BTreeSet::new(),
        };
        assert_eq!(Kind::resolve_all(argument, &served).first(), Kind::resolve(argument, &served).as_ref());
        let found =
            Kind::resolve(argument, &served).map(|kind| format!("{} {}", kind.gvr.api_version(), kind.gvr.resource));
        assert_eq!(found.as_deref(), expected);
    }
}
