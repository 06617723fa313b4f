//! One object named as `KIND/NAME`: resolves its kind, finds the clusters that have it and reads it there.

use anyhow::{anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::names::CONTROL_PLANE;
use crowsnest_apimachinery::request::{path_segment, percent_encode};
pub use crowsnest_apimachinery::unstructured::text;
use serde_json::Value;

use super::clients;
use super::connection::ConnectionArgs;
use crate::verbs::get::kind::Kind;
use crate::verbs::get::{Scope, find_kind};

pub const SEARCH_API_PATH: &str = "/apis/search.crowsnest.io/v1alpha1";
/// Maximum number of clusters that a lookup of an object returns.
const MAX_CLUSTERS: usize = 5000;

#[derive(Debug, Args)]
pub(crate) struct ObjectArgs {
    /// Object to use, as KIND/NAME or KIND NAME
    #[arg(value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    object: Vec<String>,
    /// Namespace of the object [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
}

/// An object with its kind resolved, and the clients to read it with.
pub(crate) struct ResolvedObject {
    pub(crate) config: kube::Config,
    pub(crate) control_plane: kube::Client,
    pub(crate) kind: Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// Clusters that have an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectLocations {
    pub(crate) clusters: Vec<String>,
    /// Clusters whose results are incomplete, with the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

impl ObjectArgs {
    pub(crate) fn new(object: Vec<String>, namespace: Option<String>) -> Self {
        Self { object, namespace }
    }

    /// The object that a manifest names, in the manifest's API version.
    pub(crate) fn from_manifest(object: &Value, namespace: Option<&str>) -> anyhow::Result<Self> {
        let (kind, name) = (versioned_kind(object), text(object, "/metadata/name"));
        let namespace = resolve_namespace(object, namespace)?;
        Ok(Self::new(vec![kind, name.to_owned()], namespace.map(str::to_owned)))
    }

    /// The kind, if no name was given.
    pub(crate) fn kind_without_name(&self) -> Option<&str> {
        match self.object.as_slice() {
            [kind] if !kind.contains('/') => Some(kind),
            _ => None,
        }
    }

    /// Splits the arguments into kind and name.
    fn kind_and_name(&self) -> anyhow::Result<(&str, &str)> {
        let parts = match self.object.as_slice() {
            [argument] => argument.split_once('/'),
            [kind, name] if !kind.contains('/') => Some((kind.as_str(), name.as_str())),
            _ => None,
        };
        let parts = parts.filter(|(kind, name)| !kind.is_empty() && !name.is_empty() && !name.contains('/'));
        parts.ok_or_else(|| {
            anyhow!("invalid object {:?}: expected KIND/NAME, such as deployment/web", self.object.join(" "))
        })
    }

    /// Resolves the kind with the discovery of the control plane or, if it does not serve the kind, of these clusters (all
    /// clusters if the list is empty).
    pub(crate) async fn resolve(
        &self,
        connection: &ConnectionArgs,
        clusters: &[String],
    ) -> anyhow::Result<ResolvedObject> {
        let (resource_type, name) = self.kind_and_name()?;
        let config = connection.load_config().await?;
        let control_plane = kube::Client::try_from(config.clone())?;
        let scope = if clusters.is_empty() { Scope::All } else { Scope::Named(clusters.to_vec()) };
        let kind = find_kind(resource_type, &scope, &config, &control_plane).await?;
        let namespace =
            kind.namespaced.then(|| self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone()));
        Ok(ResolvedObject { config, control_plane, kind, namespace, name: name.to_owned() })
    }

    /// Resolves the kind, and the cluster of the object: `cluster` if it is set, otherwise the only cluster that has it.
    pub(crate) async fn resolve_with_cluster(
        &self,
        connection: &ConnectionArgs,
        cluster: Option<&str>,
    ) -> anyhow::Result<(ResolvedObject, String)> {
        let clusters: Vec<String> = cluster.map(str::to_owned).into_iter().collect();
        let object = self.resolve(connection, &clusters).await?;
        let cluster = object.cluster(cluster).await?;
        Ok((object, cluster))
    }
}

impl ResolvedObject {
    /// Resource, namespace and name for messages, such as `deployments.apps shop/web`.
    pub(crate) fn display_name(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{} {namespace}{}", self.kind.name(), self.name)
    }

    /// The object's path on its API server.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.kind.gvr.path(self.namespace.as_deref()), path_segment(&self.name))
    }

    /// The query parameters that identify the object to the search API.
    pub(crate) fn query_parameters(&self, cluster: &str) -> String {
        let parameters = [
            ("cluster", cluster),
            ("apiVersion", &self.kind.gvr.api_version()),
            ("resource", &self.kind.gvr.resource),
            ("namespace", self.namespace.as_deref().unwrap_or_default()),
            ("name", &self.name),
        ];
        parameters.map(|(name, value)| format!("{name}={}", percent_encode(value))).join("&")
    }

    /// Reads the object; `None` if the server does not have it or does not serve its kind.
    pub(crate) async fn read(&self, client: &kube::Client, cluster: Option<&str>) -> anyhow::Result<Option<Value>> {
        clients::find(client, cluster, &self.path()).await
    }

    /// Reads the object from a member cluster.
    pub(crate) async fn read_in(&self, cluster: &str) -> anyhow::Result<Value> {
        let object = self.read(&clients::member(&self.config, cluster)?, Some(cluster)).await?;
        object.ok_or_else(|| {
            anyhow!(
                "cluster {cluster} has no {}; `crowsnest search 'name:={}'` finds the clusters that have it",
                self.display_name(),
                self.name
            )
        })
    }

    /// Requests a resource of the search API for this object; `parameters` are appended to the query
    /// string.
    pub(crate) async fn request_search_api(
        &self,
        resource: &str,
        cluster: &str,
        parameters: &str,
    ) -> anyhow::Result<Value> {
        let path = format!("{SEARCH_API_PATH}/{resource}?{}{parameters}", self.query_parameters(cluster));
        clients::get_or_explain(&self.control_plane, &path).await
    }

    /// Finds the members that have the object, as far as the caller can read it.
    async fn find_locations(&self, deleted: bool) -> anyhow::Result<ObjectLocations> {
        self.query().find_locations(&self.control_plane, deleted).await
    }

    fn query(&self) -> ObjectQuery<'_> {
        ObjectQuery {
            resource: &self.kind.gvr.resource,
            group: &self.kind.gvr.group,
            namespace: self.namespace.as_deref(),
            name: &self.name,
        }
    }

    /// The clusters to use: `named`, or all that have the object; never an empty list.
    pub(crate) async fn clusters(&self, named: &[String]) -> anyhow::Result<ObjectLocations> {
        if !named.is_empty() && named != ["all"] {
            return Ok(ObjectLocations { clusters: named.to_vec(), skipped: Vec::new() });
        }
        self.require_locations(self.find_locations(false).await?)
    }

    fn require_locations(&self, found: ObjectLocations) -> anyhow::Result<ObjectLocations> {
        if found.clusters.is_empty() {
            let name = self.display_name();
            bail!(
                "no cluster has {name} that you can read{}; find it with `crowsnest search 'name:={}'`, or name a cluster with --cluster",
                found.incomplete_note(),
                self.name
            );
        }
        Ok(found)
    }

    /// The cluster to use: `named` if it is set, otherwise the only cluster that has, or had, the object.
    pub(crate) async fn cluster(&self, named: Option<&str>) -> anyhow::Result<String> {
        if let Some(named) = named {
            return Ok(named.to_owned());
        }
        let found = match self.find_locations(false).await? {
            found if found.clusters.is_empty() => self.require_locations(self.find_locations(true).await?)?,
            found => found,
        };
        match found.clusters.as_slice() {
            [one] => Ok(one.clone()),
            several => bail!(
                "{} is in several clusters; choose one with --cluster ({}){}",
                self.display_name(),
                several.join(", "),
                found.incomplete_note()
            ),
        }
    }
}

/// A lookup of an object in all members.
pub(crate) struct ObjectQuery<'a> {
    pub(crate) resource: &'a str,
    pub(crate) group: &'a str,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
}

impl ObjectQuery<'_> {
    /// Queries the clusters that have the object or, with `deleted`, had it.
    pub(crate) async fn find_locations(
        &self,
        control_plane: &kube::Client,
        deleted: bool,
    ) -> anyhow::Result<ObjectLocations> {
        let deleted = if deleted { " is:deleted" } else { "" };
        let namespace = self.namespace.map(|namespace| format!(" namespace:={namespace}")).unwrap_or_default();
        let query = format!("kind:{} name:={}{namespace}{deleted}", self.resource, self.name);
        let path = format!("{SEARCH_API_PATH}/query?limit={MAX_CLUSTERS}&facets=cluster&q={}", percent_encode(&query));
        Ok(self.matching_locations(&clients::get_or_explain(control_plane, &path).await?))
    }

    /// Filters the hits: the query also matches kinds of the same name in other groups, and templates.
    pub(crate) fn matching_locations(&self, response: &Value) -> ObjectLocations {
        let list = |field: &str| response.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let group = |hit: &Value| text(hit, "/apiVersion").split_once('/').map_or("", |(group, _)| group) == self.group;
        let is_match = |hit: &&Value| {
            text(hit, "/resource") == self.resource
                && group(hit)
                && text(hit, "/name") == self.name
                && text(hit, "/namespace") == self.namespace.unwrap_or_default()
        };
        let found = list("hits").iter().filter(is_match).map(|hit| text(hit, "/cluster").to_owned());
        // The control plane has the template, not a member's object.
        let mut clusters: Vec<String> = found.filter(|cluster| cluster != CONTROL_PLANE).collect();
        clusters.sort();
        let skipped = list("skipped").iter();
        let skipped =
            skipped.map(|cluster| (text(cluster, "/cluster").to_owned(), text(cluster, "/reason").to_owned()));
        ObjectLocations { clusters, skipped: skipped.collect() }
    }
}

impl ObjectLocations {
    /// A suffix for error messages that lists the clusters with incomplete results; empty if there are none.
    pub(crate) fn incomplete_note(&self) -> String {
        match self.skipped.as_slice() {
            [] => String::new(),
            some => {
                let names: Vec<&str> = some.iter().map(|(cluster, _)| cluster.as_str()).collect();
                format!("; results from {} are incomplete", names.join(", "))
            }
        }
    }
}

/// True for a 404 that concerns the Cluster and not an object in it.
pub(crate) fn is_cluster_error(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.group == "cluster.karmada.io" && details.kind == "clusters")
}

/// The kind of a manifest with version and group: `Deployment.v1.apps`.
pub(crate) fn versioned_kind(object: &Value) -> String {
    let api_version = text(object, "/apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    format!("{}.{version}.{group}", text(object, "/kind"))
}

/// The namespace of a manifest or of the flag; an error if they differ.
pub(crate) fn resolve_namespace<'n>(object: &'n Value, requested: Option<&'n str>) -> anyhow::Result<Option<&'n str>> {
    let manifest_namespace = Some(text(object, "/metadata/namespace")).filter(|namespace| !namespace.is_empty());
    match (manifest_namespace, requested) {
        (Some(manifest_namespace), Some(requested)) if manifest_namespace != requested => {
            bail!(
                "the namespace from the provided object {manifest_namespace:?} does not match the namespace {requested:?}"
            )
        }
        (manifest_namespace, requested) => Ok(manifest_namespace.or(requested)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::Gvr;
    use serde_json::json;

    fn words(line: &str) -> Result<(String, String), String> {
        let object = line.split_whitespace().map(str::to_owned).collect();
        let args = ObjectArgs { object, namespace: None };
        args.kind_and_name().map(|(kind, name)| (kind.to_owned(), name.to_owned())).map_err(|error| error.to_string())
    }

    #[rstest::rstest]
    #[case("deploy/web", Some(("deploy", "web")))]
    #[case("deploy web", Some(("deploy", "web")))]
    #[case("web", None)]
    #[case("deploy/", None)]
    #[case("deploy/a/b", None)]
    #[case("deploy/web db", None)]
    fn object_arguments_are_split(#[case] line: &str, #[case] expected: Option<(&str, &str)>) {
        match (words(line), expected) {
            (Ok((kind, name)), Some(expected)) => assert_eq!((kind.as_str(), name.as_str()), expected),
            (Err(error), None) => assert!(error.contains("expected KIND/NAME"), "{error}"),
            (read, _) => panic!("{line}: {read:?}"),
        }
    }

    #[tokio::test]
    async fn locations_are_read_from_hits() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let control_plane = kube::Client::try_from(config.clone()).unwrap();
        let kind = Kind { gvr: Gvr::new("apps", "v1", "deployments"), kind: "Deployment".to_owned(), namespaced: true };
        let object = ResolvedObject { config, control_plane, kind, namespace: Some("shop".into()), name: "web".into() };
        let hit = |cluster: &str, version: &str, name: &str| {
            json!({"cluster": cluster, "apiVersion": version,
            "resource": "deployments", "namespace": "shop", "name": name})
        };
        let response = json!({"skipped": [{"cluster": "m3", "reason": "gone"}], "hits": [
            hit("m2", "apps/v1beta1", "web"), hit("m1", "apps/v1", "web"), hit("m1", "apps/v1", "web-2"),
            hit("m4", "example.io/v1", "web"), hit("@control-plane", "apps/v1", "web")]});
        let found = object.query().matching_locations(&response);
        assert_eq!(found.clusters, ["m1", "m2"]);
        assert_eq!(found.incomplete_note(), "; results from m3 are incomplete");
        assert_eq!(object.display_name(), "deployments.apps shop/web");
        assert_eq!(
            object.query_parameters("m-1"),
            "cluster=m%2D1&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web"
        );
    }
}
