//! `metrics.k8s.io`: usage of the pods and nodes of all members. A list contains all members' items, annotated with
//! their cluster and sorted by namespace and name. An object is searched in all members and must exist in exactly
//! one.
//!
//! Items are returned as the members sent them; only their metadata is parsed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::constants::annotation::QUERY_FROM_CLUSTER;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::request::path_segment;
use crowsnest_apimachinery::selector::FieldSelector;
use crowsnest_members::Member;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::table::table;
use super::{
    MemberIdentity, MemberResponse, Status, failure_reason, format_query, json_response, json_value_response,
    with_warnings,
};
use crate::merged::{Heading, MissingCluster};
use crate::native::{NativePath, Verb};
use crate::object::Form;
use crate::options::{ListOptions, translate_fields};
use crate::table::{Content, Shape};
use crate::{Body, Error, Proxy};

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";

/// The measured resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pods,
    Nodes,
}

impl Kind {
    pub(crate) fn from_path(native: &NativePath) -> Option<Self> {
        let is_usage = native.subresource.is_empty() && &*native.resource.group == GROUP;
        match &*native.resource.resource {
            "pods" if is_usage => Some(Self::Pods),
            "nodes" if is_usage && native.namespace.is_empty() => Some(Self::Nodes),
            _ => None,
        }
    }

    /// The measured resource and its singular, the resource of its metrics, and the kind of its metrics.
    fn names(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Pods => ("pods", "pod", "podmetrics", "PodMetrics"),
            Self::Nodes => ("nodes", "node", "nodemetrics", "NodeMetrics"),
        }
    }

    /// Path in a member: of the object, or of the list if `name` is empty.
    fn path(self, namespace: &str, name: &str) -> String {
        let (resource, ..) = self.names();
        let mut path = format!("/apis/{GROUP}/{VERSION}");
        if !namespace.is_empty() {
            path.push_str(&format!("/namespaces/{}", path_segment(namespace)));
        }
        path.push_str(&format!("/{resource}"));
        if !name.is_empty() {
            path.push_str(&format!("/{}", path_segment(name)));
        }
        path
    }
}

/// A list request to members.
pub(crate) struct UsageListRequest<'a> {
    pub(crate) kind: Kind,
    pub(crate) members: Vec<Arc<Member>>,
    /// Members known to be missing before any request.
    pub(crate) missing: Vec<MissingCluster>,
    pub(crate) identity: MemberIdentity<'a>,
    pub(crate) path: &'a str,
    pub(crate) fields: Option<FieldSelector>,
    /// Query string with its question mark, or empty.
    pub(crate) query: String,
    pub(crate) shape: Shape,
}

/// The selectors of a request: the parsed field selector, and the query string for members.
pub(crate) fn selectors(native: &NativePath, parameters: &Query) -> Result<(Option<FieldSelector>, String), Error> {
    let options = ListOptions::parse(parameters, false, false)?;
    let fields = options.fields.map(|fields| translate_fields(&native.resource, fields)).transpose()?;
    let selectors = ["labelSelector", "fieldSelector"].map(|name| (name, parameters.get(name).unwrap_or_default()));
    Ok((fields, format_query(selectors)))
}

impl Proxy {
    /// Serves `metrics.k8s.io` of all Ready members for the control plane, with this process' own permissions. `path` is the
    /// native path of the group.
    pub async fn serve_usage(&self, path: &str, request: Request<Body>) -> Response<Body> {
        self.merge_usage(path, request).await.unwrap_or_else(Error::into_response)
    }

    async fn merge_usage(&self, path: &str, request: Request<Body>) -> Result<Response<Body>, Error> {
        let native = NativePath::parse(path).ok_or(Error::UnknownResource)?;
        let kind = Kind::from_path(&native).ok_or(Error::UnknownResource)?;
        let parameters = Query::parse(request.uri().query());
        let (members, missing) = self.ready_members();
        self.report_clusters(&request, || members.iter().map(|member| member.name().clone()).collect());
        match native.verb(request.method(), &parameters) {
            Verb::List => {
                let shape = Shape::from_accept_header(request.headers(), &parameters, Content::List)?;
                let (fields, query) = selectors(&native, &parameters)?;
                let (path, identity) = (kind.path(&native.namespace, ""), MemberIdentity::ServiceAccount);
                let listing = UsageListRequest { kind, members, missing, identity, path: &path, fields, query, shape };
                self.list_usage(listing).await
            }
            Verb::Get => {
                let shape = Shape::from_accept_header(request.headers(), &parameters, Content::Object)?;
                self.get_usage(kind, &native, members, missing, shape).await
            }
            _ => Err(Error::MethodNotAllowed),
        }
    }

    /// Merges the items of all members into one list. A member that does not serve the group contributes no items. If a
    /// request as the caller succeeds in no member, the response is the first refusal.
    pub(crate) async fn list_usage(&self, listing: UsageListRequest<'_>) -> Result<Response<Body>, Error> {
        let UsageListRequest { kind, members, mut missing, identity, path, fields, query, shape } = listing;
        let query = query.as_str();
        let requests = members.iter().map(|member| async move {
            (member.name().clone(), self.get_from_member(member, identity, path, query).await)
        });
        let (mut items, mut has_response, mut refusal) = (Vec::new(), false, None);
        for (cluster, response) in join_all(requests).await {
            let reason = match response {
                MemberResponse::Ok(list) => match Item::from_list(&cluster, &list) {
                    Ok(member_items) => {
                        has_response = true;
                        items.extend(member_items);
                        continue;
                    }
                    Err(error) => format!("sent an invalid list: {error}"),
                },
                MemberResponse::Other(StatusCode::NOT_FOUND, _) => continue,
                MemberResponse::Other(code, body) => {
                    let reason = failure_reason(code, &body);
                    refusal.get_or_insert(Ok((code, body)));
                    reason
                }
                MemberResponse::NoResponse(error) => {
                    let reason = error.to_string();
                    refusal.get_or_insert(Err(error));
                    reason
                }
            };
            missing.push(MissingCluster { cluster, reason });
        }
        if let (MemberIdentity::Caller(_), false, Some(refusal)) = (identity, has_response, refusal) {
            let (code, body) = refusal?;
            let mut response = json_response(body);
            *response.status_mut() = code;
            return Ok(with_warnings(response, &missing));
        }
        filter_and_sort(&mut items, fields.as_ref());
        Ok(with_warnings(list_response(kind, &items, shape)?, &missing))
    }

    async fn get_usage(
        &self,
        kind: Kind,
        native: &NativePath,
        members: Vec<Arc<Member>>,
        mut missing: Vec<MissingCluster>,
        shape: Shape,
    ) -> Result<Response<Body>, Error> {
        let path = kind.path(&native.namespace, &native.name);
        let path = path.as_str();
        let requests = members.iter().map(|member| async move {
            (member.name().clone(), self.get_from_member(member, MemberIdentity::ServiceAccount, path, "").await)
        });
        let mut usages = Vec::new();
        for (cluster, response) in join_all(requests).await {
            match ObjectUsage::from_response(response) {
                Ok(usage) => usages.push((cluster, usage)),
                Err(reason) => missing.push(MissingCluster { cluster, reason }),
            }
        }
        let response =
            require_only_object(kind, &native.namespace, &native.name, usages).and_then(|(cluster, usage)| {
                let item = Item::from_object(&cluster, kind, &usage)?;
                match shape {
                    Shape::Table(form) => Ok(json_value_response(&table(&[item], form)?)),
                    Shape::Objects(form) => Ok(json_response(item.encode(form)?.into_owned())),
                }
            });
        Ok(with_warnings(response.unwrap_or_else(Error::into_response), &missing))
    }
}

/// A member's response for one object.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ObjectUsage {
    Usage(bytes::Bytes),
    /// The object exists but has no metrics.
    WithoutMetrics,
    Absent,
}

impl ObjectUsage {
    /// Classifies a member's response. An error is the reason why the response does not show whether the object exists.
    fn from_response(response: MemberResponse) -> Result<Self, String> {
        match response {
            MemberResponse::Ok(usage) => Ok(Self::Usage(usage)),
            // The group in the details shows whether the object or its metrics are missing.
            MemberResponse::Other(StatusCode::NOT_FOUND, body) => match Status::parse(&body).details.group.as_str() {
                GROUP => Ok(Self::WithoutMetrics),
                _ => Ok(Self::Absent),
            },
            MemberResponse::Other(code, body) => Err(failure_reason(code, &body)),
            MemberResponse::NoResponse(error) => Err(error.to_string()),
        }
    }
}

/// The cluster that has the object, and its usage. Fails if no cluster or several have it; errors use Karmada's wording.
fn require_only_object(
    kind: Kind,
    namespace: &str,
    name: &str,
    usages: Vec<(ClusterName, ObjectUsage)>,
) -> Result<(ClusterName, bytes::Bytes), Error> {
    let (resource, singular, metrics_resource, _) = kind.names();
    let object = Gvr::new("", "v1", resource);
    let mut owners: Vec<_> = usages.into_iter().filter(|(_, usage)| *usage != ObjectUsage::Absent).collect();
    let is_ambiguous = owners.len() > 1;
    match owners.pop() {
        None => Err(Error::NotFound { resource: object, name: name.to_owned() }),
        Some(_) if is_ambiguous => {
            Err(Error::FoundInMultipleClusters { resource: object, kind: singular, name: name.to_owned() })
        }
        Some((cluster, ObjectUsage::Usage(usage))) => Ok((cluster, usage)),
        Some(_) => {
            let name = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
            Err(Error::NotFound { resource: Gvr::new(GROUP, VERSION, metrics_resource), name })
        }
    }
}

type Fields = BTreeMap<String, Box<RawValue>>;

/// Usage of a pod or node, annotated with its cluster.
#[derive(Debug)]
pub struct Item {
    namespace: String,
    pub name: String,
    pub cluster: ClusterName,
    pub json: Box<RawValue>,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize)]
struct ObjectMeta {
    #[serde(default)]
    namespace: String,
    name: String,
}

impl Item {
    /// Decodes the items of a member's list.
    fn from_list(cluster: &ClusterName, list: &[u8]) -> Result<Vec<Self>, serde_json::Error> {
        let list: List = serde_json::from_slice(list)?;
        list.items.unwrap_or_default().iter().map(|item| Self::annotate(cluster, item, None)).collect()
    }

    /// Decodes a single object and adds its kind.
    fn from_object(cluster: &ClusterName, kind: Kind, usage: &[u8]) -> Result<Self, serde_json::Error> {
        Self::annotate(cluster, serde_json::from_slice(usage)?, Some(kind))
    }

    fn annotate(cluster: &ClusterName, item: &RawValue, kind: Option<Kind>) -> Result<Self, serde_json::Error> {
        let mut fields: Fields = serde_json::from_str(item.get())?;
        let metadata = fields.get("metadata").map_or("null", |metadata| metadata.get());
        let ObjectMeta { namespace, name } = serde_json::from_str(metadata)?;
        let mut metadata: Fields = serde_json::from_str(metadata)?;
        let annotations = metadata.get("annotations").map(|annotations| serde_json::from_str(annotations.get()));
        let mut annotations = annotations.transpose()?.and_then(|all: Option<Fields>| all).unwrap_or_default();
        annotations.insert(QUERY_FROM_CLUSTER.to_owned(), to_raw_value(cluster)?);
        metadata.insert("annotations".to_owned(), to_raw_value(&annotations)?);
        fields.insert("metadata".to_owned(), to_raw_value(&metadata)?);
        if let Some(kind) = kind {
            fields.insert("kind".to_owned(), to_raw_value(kind.names().3)?);
            fields.insert("apiVersion".to_owned(), to_raw_value(&format!("{GROUP}/{VERSION}"))?);
        }
        Ok(Self { namespace, name, cluster: cluster.clone(), json: to_raw_value(&fields)? })
    }

    /// Encodes the object in a form.
    pub fn encode(&self, form: Form) -> Result<Cow<'_, str>, serde_json::Error> {
        let Form::Metadata(meta) = form else { return Ok(self.json.get().into()) };
        let fields: Fields = serde_json::from_str(self.json.get())?;
        let (version, metadata) = (meta.api_version(), fields.get("metadata"));
        let partial = json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata});
        Ok(partial.to_string().into())
    }
}

/// Filters the items and sorts them like an API server; items of the same name are in cluster order.
fn filter_and_sort(items: &mut Vec<Item>, fields: Option<&FieldSelector>) {
    items.retain(|item| {
        fields.is_none_or(|fields| {
            fields.matches_with(|field| match field {
                "metadata.name" => Some(item.name.as_str().into()),
                "metadata.namespace" => Some(item.namespace.as_str().into()),
                _ => None,
            })
        })
    });
    items.sort_by(|a, b| (&a.namespace, &a.name, a.cluster.as_str()).cmp(&(&b.namespace, &b.name, b.cluster.as_str())));
}

/// Encodes a list in the requested form.
fn list_response(kind: Kind, items: &[Item], shape: Shape) -> Result<Response<Body>, Error> {
    let form = match shape {
        Shape::Table(form) => return Ok(json_value_response(&table(items, form)?)),
        Shape::Objects(form) => form,
    };
    let list = format!("{}List", kind.names().3);
    let heading = Heading { api_version: format!("{GROUP}/{VERSION}"), kind: list, columns: None };
    let mut text = heading.trailing_fields(shape, json!({})).to_string();
    text.pop();
    text.push_str(r#","items":["#);
    text.reserve(items.iter().map(|item| item.json.get().len() + 1).sum());
    for (nth, item) in items.iter().enumerate() {
        if nth > 0 {
            text.push(',');
        }
        text.push_str(&item.encode(form)?);
    }
    text.push_str("]}");
    Ok(json_response(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::MetaVersion;
    use crate::table::Include;
    use rstest::rstest;
    use serde_json::Value;

    fn cluster(name: &str) -> ClusterName {
        ClusterName::parse(name).unwrap()
    }

    fn list(items: &[(&str, &str)]) -> Vec<u8> {
        let items: Vec<Value> = items
            .iter()
            .map(|(namespace, name)| {
                let usage = |cpu: &str| json!({"name": "c", "usage": {"cpu": cpu, "memory": "1024Ki"}});
                json!({"metadata": {"namespace": namespace, "name": name, "labels": {"a": "b"}},
                    "timestamp": "2026-01-01T00:00:00Z", "window": "30s", "containers": [usage("100m"), usage("0.9")]})
            })
            .collect();
        json!({"kind": "PodMetricsList", "items": items}).to_string().into_bytes()
    }

    fn items(selector: &str) -> Vec<Item> {
        let mut items = Item::from_list(&cluster("m2"), &list(&[("b", "web"), ("a", "web")])).unwrap();
        items.extend(Item::from_list(&cluster("m1"), &list(&[("b", "web"), ("b", "db")])).unwrap());
        filter_and_sort(&mut items, Some(&FieldSelector::parse(selector).unwrap()));
        items
    }

    #[rstest]
    #[case("", "a/web@m2 b/db@m1 b/web@m1 b/web@m2")]
    #[case("metadata.name=db", "b/db@m1")]
    #[case("metadata.namespace!=b", "a/web@m2")]
    fn lists_are_merged(#[case] selector: &str, #[case] expected: &str) {
        let items = items(selector);
        let listed: Vec<String> =
            items.iter().map(|item| format!("{}/{}@{}", item.namespace, item.name, item.cluster)).collect();
        assert_eq!(listed.join(" "), expected);
    }

    #[tokio::test]
    async fn items_are_annotated_with_their_cluster_and_unchanged() {
        let response = list_response(Kind::Pods, &items("metadata.name=db"), Shape::Objects(Form::Full)).unwrap();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        let list: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodMetricsList"), &json!("metrics.k8s.io/v1beta1")));
        let item = &list["items"][0];
        assert_eq!(item["metadata"]["annotations"], json!({QUERY_FROM_CLUSTER: "m1"}));
        assert_eq!((&item["metadata"]["labels"], &item["window"]), (&json!({"a": "b"}), &json!("30s")));
        assert_eq!(item["containers"][0]["usage"]["cpu"], "100m");
    }

    #[rstest]
    #[case(MetaVersion::V1, "meta.k8s.io/v1")]
    #[case(MetaVersion::V1beta1, "meta.k8s.io/v1beta1")]
    #[tokio::test]
    async fn lists_of_metadata_have_one_version(#[case] meta: MetaVersion, #[case] version: &str) {
        let response =
            list_response(Kind::Pods, &items("metadata.name=db"), Shape::Objects(Form::Metadata(meta))).unwrap();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        let list: Value = serde_json::from_slice(&body).unwrap();
        let type_of = |object: &Value| (object["kind"].clone(), object["apiVersion"].clone());
        assert_eq!(type_of(&list), (json!("PartialObjectMetadataList"), json!(version)));
        assert_eq!(type_of(&list["items"][0]), (json!("PartialObjectMetadata"), json!(version)));
        assert_eq!(list["items"][0]["metadata"]["name"], "db");
    }

    #[test]
    fn the_usage_of_a_pod_in_a_table_is_the_sum_of_its_containers() {
        let table = table(&items("metadata.name=db"), Include::Metadata.into()).unwrap();
        assert_eq!(table["rows"][0]["cells"], json!(["db", "1", "2Mi", "30s", "m1"]));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        let names: Vec<&str> =
            table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["Name", "cpu", "memory", "Window", "Cluster"]);
    }

    #[rstest]
    #[case::in_no_cluster(Kind::Pods, "a", &[ObjectUsage::Absent, ObjectUsage::Absent], "pods \"x\" not found")]
    #[case::no_member(Kind::Nodes, "", &[], "nodes \"x\" not found")]
    #[case::in_one(Kind::Pods, "a", &[ObjectUsage::Absent, ObjectUsage::Usage("u".into())], "m1")]
    #[case::not_measured(Kind::Pods, "a", &[ObjectUsage::WithoutMetrics], "podmetrics.metrics.k8s.io \"a/x\" not found")]
    #[case::node_not_measured(Kind::Nodes, "", &[ObjectUsage::Absent, ObjectUsage::WithoutMetrics], "nodemetrics.metrics.k8s.io \"x\" not found")]
    #[case::in_two(Kind::Pods, "a", &[ObjectUsage::Usage("u".into()), ObjectUsage::WithoutMetrics],
        "Operation cannot be fulfilled on pods \"x\": the pod(x) found in more than one clusters")]
    #[case::nodes(Kind::Nodes, "", &[ObjectUsage::Usage("u".into()), ObjectUsage::Usage("v".into())],
        "Operation cannot be fulfilled on nodes \"x\": the node(x) found in more than one clusters")]
    fn an_object_must_be_in_one_cluster(
        #[case] kind: Kind,
        #[case] namespace: &str,
        #[case] found: &[ObjectUsage],
        #[case] expected: &str,
    ) {
        let found =
            found.iter().cloned().enumerate().map(|(nth, found)| (cluster(&format!("m{nth}")), found)).collect();
        let result = require_only_object(kind, namespace, "x", found);
        assert_eq!(result.map_or_else(|error| error.to_string(), |(cluster, _)| cluster.to_string()), expected);
    }

    #[rstest]
    #[case(json!({"details": {"name": "a/x", "group": "metrics.k8s.io", "kind": "podmetrics"}}), ObjectUsage::WithoutMetrics)]
    #[case(json!({"details": {"name": "x", "kind": "pods"}}), ObjectUsage::Absent)]
    #[case(json!("404 page not found"), ObjectUsage::Absent)]
    fn responses_of_members_are_classified(#[case] body: Value, #[case] expected: ObjectUsage) {
        let response = MemberResponse::Other(StatusCode::NOT_FOUND, body.to_string().into());
        assert_eq!(ObjectUsage::from_response(response), Ok(expected));
    }

    #[rstest]
    #[case("/apis/metrics.k8s.io/v1beta1/nodes", Some("/apis/metrics.k8s.io/v1beta1/nodes"))]
    #[case(
        "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/p%2E1",
        Some("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/p.1")
    )]
    #[case("/apis/metrics.k8s.io/v1beta1/namespaces/a/nodes", None)]
    #[case("/apis/metrics.k8s.io/v1beta1/services", None)]
    #[case("/api/v1/pods", None)]
    fn only_pods_and_nodes_are_measured(#[case] path: &str, #[case] expected: Option<&str>) {
        let native = NativePath::parse(path).unwrap();
        let upstream_path = Kind::from_path(&native).map(|kind| kind.path(&native.namespace, &native.name));
        assert_eq!(upstream_path.as_deref(), expected);
    }
}
