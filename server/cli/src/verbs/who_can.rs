//! `crowsnest who-can`: lists who is allowed an action in each cluster, from ResourceAccessReviews of `access.crowsnest.io`.

use std::collections::HashMap;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crowsnest_apimachinery::names::{CONTROL_PLANE, Gvr};
use crowsnest_apimachinery::unstructured::text;
use serde_json::{Value, json};

use super::get::kind::Kind;
use super::get::{Scope, find_kind};
use crate::reach;
use crate::reviews::{self, Output, ReviewArgs, reference, reference_or_none, scope};

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Maximum number of reviews that `--verify` sends.
const MOST_VERIFIED: usize = 200;
/// Subresources that users may mean by TYPE/NAME.
const SUBRESOURCES: [&str; 10] =
    ["approval", "attach", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "proxy", "scale", "token"];

/// Resources that RBAC rules name and no cluster serves.
const CLUSTER_SCOPED: [&str; 5] = ["groups", "signers", "uids", "userextras", "users"];

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest who-can get secrets -n shop\n  crowsnest who-can create pods --subresource exec -A -o wide\n  crowsnest who-can delete deploy/web -n shop -C member1,member2\n  crowsnest who-can get /metrics\n  crowsnest who-can get secrets -n shop --without clusterrolebinding/admins\n  crowsnest who-can get secrets -n shop --indirect"
)]
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
    let config = args.review.connection.config().await?;
    let client = kube::Client::try_from(config.clone())?;
    let mut spec =
        if args.target.starts_with('/') { path_spec(&args)? } else { resource_spec(&args, &config, &client).await? };
    args.review.apply(&mut spec);
    let mut review = reviews::review(&client, "ResourceAccessReview", spec).await?;
    if args.verify {
        verify(&mut review, &config, &client).await?;
    }
    let status = &review["status"];
    args.review.print(&review, |out| {
        let rows = reviews::rows(status, "grants").into_iter().map(|(change, grant)| (change, cells(&args, grant)));
        reviews::table(out, &heads(&args), rows.collect(), status)
    })
}

fn path_spec(args: &WhoCanArgs) -> anyhow::Result<Value> {
    if args.subresource.is_some() || args.namespace.is_some() || args.all_namespaces {
        bail!("--subresource, -n and -A require a resource type, not the URL {:?}", args.target);
    }
    Ok(json!({"nonResourceAttributes": {"verb": args.verb, "path": args.target}}))
}

async fn resource_spec(args: &WhoCanArgs, config: &kube::Config, client: &kube::Client) -> anyhow::Result<Value> {
    let (word, name) = args.target.split_once('/').unwrap_or((&args.target, ""));
    if word.is_empty() || name.contains('/') {
        bail!("invalid target {:?}: expected TYPE, TYPE/NAME or a URL that begins with /", args.target);
    }
    if args.subresource.is_none() && SUBRESOURCES.contains(&name) {
        bail!("{:?} names an object {name:?}; for the subresource use `{word} --subresource {name}`", args.target);
    }
    let Type { group, resource, namespaced } = resolve(word, config, client).await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let mut attributes = json!({"verb": args.verb, "group": group, "resource": resource});
    for (field, value) in [("name", name), ("subresource", args.subresource.as_deref().unwrap_or_default())] {
        if !value.is_empty() {
            attributes[field] = value.into();
        }
    }
    let mut spec = json!({});
    // A request for a Namespace is a request in it.
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

/// A resource type as RBAC names it.
struct Type {
    group: String,
    resource: String,
    namespaced: bool,
}

/// Resolves a word by what the control plane or a member serves. Reviews answer for any name, and warn if no cluster serves
/// it.
async fn resolve(word: &str, config: &kube::Config, client: &kube::Client) -> anyhow::Result<Type> {
    let (resource, group) = word.split_once('.').unwrap_or((word, ""));
    let named = |namespaced| Type { group: group.to_owned(), resource: resource.to_lowercase(), namespaced };
    if CLUSTER_SCOPED.contains(&resource) {
        return Ok(named(false));
    }
    let served = crowsnest_members::discovery::discover(client).await?;
    // Resources that can only be created are no kinds to display.
    let is_it = |gvr: &Gvr| &*gvr.resource == resource && &*gvr.group == group;
    if let Some(found) = served.resources.iter().find(|one| is_it(&one.gvr)) {
        return Ok(named(found.namespaced));
    }
    let found = match Kind::of(word, &served) {
        Some(kind) => Some(kind),
        None => find_kind(word, &Scope::All, config, client).await.ok(),
    };
    Ok(found.map_or_else(
        || named(true),
        |kind| Type {
            group: kind.gvr.group.to_string(),
            resource: kind.gvr.resource.to_string(),
            namespaced: kind.namespaced,
        },
    ))
}

fn heads(args: &WhoCanArgs) -> Vec<&'static str> {
    let mut heads = vec!["CLUSTER", "SUBJECT", "NAMESPACE", "BINDING", "ROLE"];
    if args.review.output == Output::Wide {
        heads.extend(["VERBS", "RESOURCES", "AGGREGATED FROM"]);
    }
    if args.verify {
        heads.push("VERIFIED");
    }
    heads
}

fn cells(args: &WhoCanArgs, grant: &Value) -> Vec<String> {
    let mut cells = vec![
        text(grant, "/cluster").to_owned(),
        reference(&grant["subject"]),
        scope(grant),
        reference_or_none(grant, "binding"),
        reference_or_none(grant, "role"),
    ];
    if args.review.output == Output::Wide {
        let (verbs, on) = reviews::rule(&grant["rule"]);
        let sources = grant["aggregatedFrom"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let sources = sources.collect::<Vec<_>>().join(",");
        cells.extend([verbs, on, if sources.is_empty() { "-".to_owned() } else { sources }]);
    }
    if args.verify {
        cells.push(text(grant, "/verified").to_owned());
    }
    cells
}

/// Adds to each grant whether the cluster's own authorizers allow the action to its subject: `yes`, `no`, or the error.
async fn verify(review: &mut Value, config: &kube::Config, control_plane: &kube::Client) -> anyhow::Result<()> {
    let spec = review["spec"].clone();
    let mut known: HashMap<(String, String, String), String> = HashMap::new();
    for list in ["grants", "lost", "remaining"] {
        let grants = review.pointer_mut(&format!("/status/{list}")).and_then(Value::as_array_mut);
        for grant in grants.into_iter().flatten() {
            let (cluster, namespace) = (text(grant, "/cluster").to_owned(), text(grant, "/namespace").to_owned());
            let key = (cluster.clone(), reference(&grant["subject"]), namespace);
            let verified = match known.get(&key) {
                Some(verified) => verified.clone(),
                None if known.len() >= MOST_VERIFIED => "not asked".to_owned(),
                None => {
                    let client = match cluster.as_str() {
                        CONTROL_PLANE => control_plane.clone(),
                        cluster => reach::member(config, cluster)?,
                    };
                    let verified = ask(&client, &access_review(&spec, grant), &cluster).await;
                    known.insert(key, verified.clone());
                    verified
                }
            };
            grant["verified"] = verified.into();
        }
    }
    Ok(())
}

/// The SubjectAccessReview for a grant, with the groups that API servers add to its subject.
fn access_review(spec: &Value, grant: &Value) -> Value {
    let (kind, namespace, name) =
        (text(grant, "/subject/kind"), text(grant, "/subject/namespace"), text(grant, "/subject/name"));
    let everyone = "system:authenticated";
    let mut review_spec = match kind {
        "Group" => json!({"groups": [name, everyone]}),
        "ServiceAccount" => json!({"user": format!("system:serviceaccount:{namespace}:{name}"),
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), everyone]}),
        _ => json!({"user": name, "groups": [everyone]}),
    };
    for field in ["resourceAttributes", "nonResourceAttributes"] {
        if spec[field].is_object() {
            review_spec[field] = spec[field].clone();
        }
    }
    let within = text(grant, "/namespace");
    if !within.is_empty() && review_spec["resourceAttributes"].is_object() {
        review_spec["resourceAttributes"]["namespace"] = within.into();
    }
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": review_spec})
}

async fn ask(client: &kube::Client, review: &Value, cluster: &str) -> String {
    let body = review.to_string().into_bytes();
    let request = http::Request::post(ACCESS_REVIEWS).header(http::header::CONTENT_TYPE, "application/json").body(body);
    let request = match request {
        Ok(request) => request,
        Err(error) => return error.to_string(),
    };
    match client.request::<Value>(request).await {
        Ok(response) if response["status"]["allowed"] == true => "yes".to_owned(),
        Ok(_) => "no".to_owned(),
        Err(error) => reach::failure(Some(cluster), &error),
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
        #[case] within: &str,
    ) {
        let spec =
            json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "a"}, "clusters": ["m1"]});
        let mut review = access_review(&spec, &json!({"subject": subject, "namespace": namespace}));
        let attributes = review["spec"]["resourceAttributes"].take();
        assert_eq!(attributes, json!({"verb": "get", "resource": "pods", "namespace": within}));
        let review_spec = review["spec"].as_object_mut().unwrap();
        review_spec.remove("resourceAttributes");
        assert_eq!(review["spec"], expected);
    }
}
