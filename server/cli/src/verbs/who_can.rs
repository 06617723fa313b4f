//! `crowsnest who-can`: lists who may perform an action in each cluster, from ResourceAccessReviews of
//! `access.crowsnest.io`.

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crowsnest_apimachinery::names::{CONTROL_PLANE, Gvr};
use crowsnest_apimachinery::rbac::VIRTUAL_RESOURCES;
use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_apimachinery::user::{AUTHENTICATED, service_account_groups, service_account_user};
use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};

use super::get::kind::Kind;
use super::get::{Scope, find_kind};
use crate::clients;
use crate::reviews::{self, Output, ReviewArgs, format_reference, format_reference_or_none, format_scope};

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Maximum number of reviews that `--verify` sends.
const MAX_VERIFIED_GRANTS: usize = 200;
/// Maximum number of concurrent reviews of `--verify`.
const MAX_CONCURRENT_REVIEWS: usize = 8;
/// Result for a grant without a review.
const NOT_VERIFIED: &str = "not verified";
/// Subresources that users may write as TYPE/SUBRESOURCE by mistake, such as pods/log.
const SUBRESOURCES: [&str; 10] =
    ["approval", "attach", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "proxy", "scale", "token"];
/// Fields of a review's status that list grants.
const GRANT_FIELDS: [&str; 3] = ["grants", "lost", "remaining"];

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest who-can get secrets -n shop",
    "crowsnest who-can create pods --subresource exec -A -o wide",
    "crowsnest who-can delete deploy/web -n shop -C member1,member2",
    "crowsnest who-can get /metrics",
    "crowsnest who-can get secrets -n shop --without clusterrolebinding/admins",
    "crowsnest who-can get secrets -n shop --indirect",
])]
pub struct WhoCanArgs {
    /// Verb, such as get, list, create, delete, impersonate, escalate or bind
    verb: String,
    /// Resource type, an object of it, or the path of a non-resource URL
    #[arg(value_name = "TYPE[/NAME]|URL")]
    target: String,
    /// Subresource, such as exec, log or scale
    #[arg(long)]
    subresource: Option<String>,
    /// Namespace of the request [default: the namespace of the kubeconfig's context]
    #[arg(short, long, conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// List grants in all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Confirm each grant with an access review in its cluster
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    review: ReviewArgs,
}

pub(crate) async fn run(args: WhoCanArgs) -> anyhow::Result<ExitCode> {
    let config = args.review.read.connection.load_config().await?;
    let client = kube::Client::try_from(config.clone())?;
    let mut spec =
        if args.target.starts_with('/') { path_spec(&args)? } else { resource_spec(&args, &config, &client).await? };
    args.review.apply(&mut spec);
    let mut review = reviews::request_review(&client, "ResourceAccessReview", spec).await?;
    if args.verify {
        verify(&mut review, &config, &client).await;
    }
    let status = &review["status"];
    args.review.print(&review, |out| {
        let rows = reviews::rows(status, "grants").into_iter().map(|(change, grant)| (change, cells(&args, grant)));
        reviews::print_table(out, &headers(&args), rows.collect(), status)
    })
}

fn path_spec(args: &WhoCanArgs) -> anyhow::Result<Value> {
    if args.subresource.is_some() || args.namespace.is_some() || args.all_namespaces {
        bail!("--subresource, -n and -A require a resource type, not the URL {:?}", args.target);
    }
    Ok(json!({"nonResourceAttributes": {"verb": args.verb, "path": args.target}}))
}

async fn resource_spec(args: &WhoCanArgs, config: &kube::Config, client: &kube::Client) -> anyhow::Result<Value> {
    let (resource_type, name) = args.target.split_once('/').unwrap_or((&args.target, ""));
    if resource_type.is_empty() || name.contains('/') {
        bail!("invalid target {:?}: expected TYPE, TYPE/NAME or a URL that begins with /", args.target);
    }
    if args.subresource.is_none() && SUBRESOURCES.contains(&name) {
        bail!(
            "{:?} names an object {name:?}; for the subresource use `{resource_type} --subresource {name}`",
            args.target
        );
    }
    let ResourceType { group, resource, namespaced } = resolve_type(resource_type, config, client).await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let mut attributes = json!({"verb": args.verb, "group": group, "resource": resource});
    for (field, value) in [("name", name), ("subresource", args.subresource.as_deref().unwrap_or_default())] {
        if !value.is_empty() {
            attributes[field] = value.into();
        }
    }
    let mut spec = json!({});
    // API servers authorize a request for a Namespace in that namespace.
    if (group.as_str(), resource.as_str()) == ("", "namespaces") && !name.is_empty() {
        attributes["namespace"] = name.into();
    } else if namespaced && args.all_namespaces {
        spec["namespaces"] = json!(["*"]);
    } else if namespaced {
        attributes["namespace"] = namespace.into();
    }
    spec["resourceAttributes"] = attributes;
    Ok(spec)
}

/// A resource type as RBAC rules name it: by group and plural.
struct ResourceType {
    group: String,
    resource: String,
    namespaced: bool,
}

/// Resolves a resource type with the discovery of the control plane or, if it does not serve the type, of the members. A
/// review accepts any name and warns if no cluster serves it.
async fn resolve_type(
    resource_type: &str,
    config: &kube::Config,
    client: &kube::Client,
) -> anyhow::Result<ResourceType> {
    let (resource, group) = resource_type.split_once('.').unwrap_or((resource_type, ""));
    let type_from_text =
        |namespaced| ResourceType { group: group.to_owned(), resource: resource.to_lowercase(), namespaced };
    if VIRTUAL_RESOURCES.contains(&resource) {
        return Ok(type_from_text(false));
    }
    let served = crowsnest_members::discovery::discover(client).await?;
    // `Kind::resolve` ignores resources that can only be created, such as tokenreviews.
    let is_match = |gvr: &Gvr| &*gvr.resource == resource && &*gvr.group == group;
    if let Some(found) = served.resources.iter().find(|served_type| is_match(&served_type.gvr)) {
        return Ok(type_from_text(found.namespaced));
    }
    let found = match Kind::resolve(resource_type, &served) {
        Some(kind) => Some(kind),
        None => find_kind(resource_type, &Scope::All, config, client).await.ok(),
    };
    Ok(found.map_or_else(
        || type_from_text(true),
        |kind| ResourceType {
            group: kind.gvr.group.to_string(),
            resource: kind.gvr.resource.to_string(),
            namespaced: kind.namespaced,
        },
    ))
}

fn headers(args: &WhoCanArgs) -> Vec<&'static str> {
    let mut headers = vec!["CLUSTER", "SUBJECT", "NAMESPACE", "BINDING", "ROLE"];
    if args.review.output == Output::Wide {
        headers.extend(["VERBS", "RESOURCES", "AGGREGATED FROM"]);
    }
    if args.verify {
        headers.push("VERIFIED");
    }
    headers
}

fn cells(args: &WhoCanArgs, grant: &Value) -> Vec<String> {
    let mut cells = vec![
        text(grant, "/cluster").to_owned(),
        format_reference(&grant["subject"]),
        format_scope(grant),
        format_reference_or_none(grant, "binding"),
        format_reference_or_none(grant, "role"),
    ];
    if args.review.output == Output::Wide {
        let (verbs, targets) = reviews::format_rule(&grant["rule"]);
        let sources = grant["aggregatedFrom"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let sources = sources.collect::<Vec<_>>().join(",");
        cells.extend([verbs, targets, if sources.is_empty() { "-".to_owned() } else { sources }]);
    }
    if args.verify {
        cells.push(text(grant, "/verified").to_owned());
    }
    cells
}

/// Identifies the access review of a grant; several grants may have the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ReviewKey {
    cluster: String,
    subject: String,
    namespace: String,
}

impl ReviewKey {
    fn from_grant(grant: &Value) -> Self {
        Self {
            cluster: text(grant, "/cluster").to_owned(),
            subject: format_reference(&grant["subject"]),
            namespace: text(grant, "/namespace").to_owned(),
        }
    }
}

/// Adds to each grant the decision of the cluster's own authorizers about its subject: `yes`, `no`, the error, or
/// [`NOT_VERIFIED`].
async fn verify(review: &mut Value, config: &kube::Config, control_plane: &kube::Client) {
    let mut clients: HashMap<String, Result<kube::Client, String>> = HashMap::new();
    let mut requests = Vec::new();
    for (key, request) in access_reviews(review) {
        let client = clients.entry(key.cluster.clone()).or_insert_with(|| match key.cluster.as_str() {
            CONTROL_PLANE => Ok(control_plane.clone()),
            cluster => clients::member(config, cluster).map_err(|error| format!("{error:#}")),
        });
        let client = client.clone();
        requests.push(async move {
            let result = match client {
                Ok(client) => verify_one(&client, &request, &key.cluster).await,
                Err(error) => error,
            };
            (key, result)
        });
    }
    let results: HashMap<_, _> = stream::iter(requests).buffer_unordered(MAX_CONCURRENT_REVIEWS).collect().await;
    add_results(review, &results);
}

/// The reviews of the grants, each once and at most [`MAX_VERIFIED_GRANTS`].
fn access_reviews(review: &Value) -> Vec<(ReviewKey, Value)> {
    let grants = GRANT_FIELDS.into_iter().flat_map(|field| list(&review["status"], field));
    let mut keys = HashSet::new();
    let unique_grants = grants.filter(|grant| keys.insert(ReviewKey::from_grant(grant)));
    unique_grants
        .take(MAX_VERIFIED_GRANTS)
        .map(|grant| (ReviewKey::from_grant(grant), access_review(&review["spec"], grant)))
        .collect()
}

fn add_results(review: &mut Value, results: &HashMap<ReviewKey, String>) {
    for field in GRANT_FIELDS {
        let grants = review["status"].get_mut(field).and_then(Value::as_array_mut);
        for grant in grants.into_iter().flatten() {
            grant["verified"] = results.get(&ReviewKey::from_grant(grant)).map_or(NOT_VERIFIED, String::as_str).into();
        }
    }
}

/// The SubjectAccessReview for a grant, with the groups that API servers add to its subject.
fn access_review(spec: &Value, grant: &Value) -> Value {
    let (kind, namespace, name) =
        (text(grant, "/subject/kind"), text(grant, "/subject/namespace"), text(grant, "/subject/name"));
    let mut review_spec = match kind {
        "Group" => json!({"groups": [name, AUTHENTICATED]}),
        "ServiceAccount" => {
            let [common_group, namespace_group] = service_account_groups(namespace);
            json!({"user": service_account_user(namespace, name), "groups": [common_group, namespace_group, AUTHENTICATED]})
        }
        _ => json!({"user": name, "groups": [AUTHENTICATED]}),
    };
    for field in ["resourceAttributes", "nonResourceAttributes"] {
        if spec[field].is_object() {
            review_spec[field] = spec[field].clone();
        }
    }
    let grant_namespace = text(grant, "/namespace");
    if !grant_namespace.is_empty() && review_spec["resourceAttributes"].is_object() {
        review_spec["resourceAttributes"]["namespace"] = grant_namespace.into();
    }
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": review_spec})
}

/// Sends an access review; returns `yes`, `no` or the error.
async fn verify_one(client: &kube::Client, review: &Value, cluster: &str) -> String {
    let body = review.to_string().into_bytes();
    let request = http::Request::post(ACCESS_REVIEWS).header(http::header::CONTENT_TYPE, "application/json").body(body);
    let request = match request {
        Ok(request) => request,
        Err(error) => return error.to_string(),
    };
    match client.request::<Value>(request).await {
        Ok(response) if response["status"]["allowed"] == true => "yes".to_owned(),
        Ok(_) => "no".to_owned(),
        Err(error) => clients::explain_failure(Some(cluster), &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::a_group(json!({"kind": "Group", "name": "sre"}), "", json!({"groups": ["sre", "system:authenticated"]}), "a")]
    #[case::an_account(
        json!({"kind": "ServiceAccount", "namespace": "shop", "name": "robot"}), "shop",
        json!({"user": "system:serviceaccount:shop:robot", "groups": ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"]}),
        "shop"
    )]
    fn grants_are_verified_as_their_subject(
        #[case] subject: Value,
        #[case] namespace: &str,
        #[case] expected: Value,
        #[case] expected_namespace: &str,
    ) {
        let spec =
            json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "a"}, "clusters": ["m1"]});
        let mut review = access_review(&spec, &json!({"subject": subject, "namespace": namespace}));
        let attributes = review["spec"]["resourceAttributes"].take();
        assert_eq!(attributes, json!({"verb": "get", "resource": "pods", "namespace": expected_namespace}));
        let review_spec = review["spec"].as_object_mut().unwrap();
        review_spec.remove("resourceAttributes");
        assert_eq!(review["spec"], expected);
    }

    #[test]
    fn grants_without_a_review_are_not_verified() {
        let grant = |name: &str, namespace: &str| {
            let subject = json!({"kind": "User", "name": name});
            json!({"cluster": "m1", "subject": subject, "namespace": namespace})
        };
        let many = (0..MAX_VERIFIED_GRANTS).map(|nth| grant(&format!("user-{nth}"), ""));
        let grants: Vec<Value> = [grant("ann", "shop"), grant("ann", "shop")].into_iter().chain(many).collect();
        let spec = json!({"resourceAttributes": {"verb": "get", "resource": "pods"}});
        let mut review = json!({"spec": spec, "status": {"grants": grants, "lost": [grant("ann", "ops")]}});
        let reviews = access_reviews(&review);
        assert_eq!(reviews.len(), MAX_VERIFIED_GRANTS);
        add_results(&mut review, &reviews.into_iter().map(|(key, _)| (key, "yes".to_owned())).collect());
        let grants = list(&review, "/status/grants");
        let verified: Vec<&str> = grants.iter().map(|grant| text(grant, "/verified")).collect();
        let last = verified.len() - 1;
        assert_eq!((verified[0], verified[1], verified[last - 1], verified[last]), ("yes", "yes", "yes", NOT_VERIFIED));
        assert_eq!(text(&review, "/status/lost/0/verified"), NOT_VERIFIED);
    }
}
