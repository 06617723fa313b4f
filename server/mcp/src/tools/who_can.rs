//! `who_can`: who is allowed an action, or what a subject is allowed, by the RBAC of each cluster.

use crowsnest_apimachinery::unstructured::{list, text, texts};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::object::quoted;
use super::shape::{plain, reference};
use super::{Call, Next, Page, Tool, ToolError};
use crate::api::{ACCESS, SEARCH, get, post, uri};
use crate::output::{Answer, Row, row};

const MAX_CLUSTERS: usize = 100;
/// Rows that are requested at first.
const ROWS: usize = 200;

pub(super) const TOOL: Tool = Tool {
    name: "who_can",
    title: "Review access",
    description: "With `verb` and `resource` (or `path`): who may do it, in each cluster, with the binding, role and rule that \
grant it. With `user`, `group` or `service_account`: what it may do. By RBAC; other authorizers may allow more. `indirect` \
adds paths such as creating pods that read Secrets. Clusters whose state is not Complete may grant more.",
    properties: || {
        json!({
            "verb": {"type": "string", "description": "get, list, create, update, delete, impersonate, escalate …"},
            "resource": {"type": "string", "description": "Plural, with its group: pods, deployments.apps."},
            "subresource": {"type": "string", "description": "exec, log, scale …"},
            "name": {"type": "string", "description": "Name of one object."},
            "path": {"type": "string", "description": "Non-resource URL instead of a resource, such as /metrics."},
            "namespace": {"type": "string", "description": "Default: all namespaces."},
            "clusters": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_CLUSTERS},
            "user": {"type": "string"},
            "group": {"type": "string", "description": "Group, alone or of the user."},
            "service_account": {"type": "string", "description": "NAMESPACE/NAME"},
            "indirect": {"type": "boolean"},
        })
    },
    required: &[],
    run,
};

fn run<'c>(call: &'c Call<'c>) -> BoxFuture<'c, Result<Page, ToolError>> {
    Box::pin(who_can(call))
}

async fn who_can(call: &Call<'_>) -> Result<Page, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let is_about_subject =
        !(argument("user")?.is_empty() && argument("group")?.is_empty() && argument("service_account")?.is_empty());
    let is_about_action =
        !(argument("verb")?.is_empty() && argument("resource")?.is_empty() && argument("path")?.is_empty());
    let (kind, mut spec) = match (is_about_subject, is_about_action) {
        (true, false) => ("SubjectRulesReview", subject(call)?),
        (false, true) => ("ResourceAccessReview", action(call).await?),
        _ => {
            let message = "set verb and resource (or path), or one of user, group and service_account";
            return Err(ToolError::Input(message.to_owned()));
        }
    };
    spec["clusters"] = json!(call.arguments.texts("clusters", MAX_CLUSTERS)?);
    spec["indirect"] = call.arguments.flag("indirect")?.into();
    spec["continue"] = call.token().into();
    let mut limit = ROWS;
    loop {
        spec["limit"] = limit.into();
        let review = ask(call, kind, &spec).await?;
        let answer = answer(&review["status"]);
        let shown = answer.render(0, call.budget, |_| Some("c".repeat(300))).shown;
        // A token continues after the rows of a page, so a page that is too large is requested again with the rows that fit.
        let grants = answer.rows.len() - list(&review["status"], "indirect").len();
        if shown < grants && shown > 0 && limit > shown {
            limit = shown;
            continue;
        }
        let next = Some(text(&review["status"], "continue").to_owned()).filter(|token| !token.is_empty());
        return Ok(Page { answer, next: Next::Token(next) });
    }
}

async fn ask(call: &Call<'_>, kind: &str, spec: &Value) -> Result<Value, ToolError> {
    let body = json!({"apiVersion": "access.crowsnest.io/v1alpha1", "kind": kind, "spec": spec});
    let resource = if kind == "SubjectRulesReview" { "subjectrulesreviews" } else { "resourceaccessreviews" };
    Ok(post(call.api, format!("{ACCESS}/{resource}"), body).await?)
}

fn subject(call: &Call<'_>) -> Result<Value, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let (user, group) = (argument("user")?, argument("group")?);
    let user = match argument("service_account")?.split_once('/') {
        Some((namespace, name)) if user.is_empty() => format!("system:serviceaccount:{namespace}:{name}"),
        None if argument("service_account")?.is_empty() => user.to_owned(),
        _ => return Err(ToolError::Input("service_account must be NAMESPACE/NAME, without user".to_owned())),
    };
    let groups: Vec<&str> = Some(group).into_iter().filter(|group| !group.is_empty()).collect();
    let mut spec = json!({"user": user, "groups": groups});
    let namespace = argument("namespace")?;
    if !namespace.is_empty() {
        spec["namespaces"] = json!([namespace]);
    }
    Ok(spec)
}

async fn action(call: &Call<'_>) -> Result<Value, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let (verb, path, namespace) = (argument("verb")?, argument("path")?, argument("namespace")?);
    let (resource, name) = (argument("resource")?, argument("name")?);
    if verb.is_empty() || resource.is_empty() == path.is_empty() {
        return Err(ToolError::Input("set verb, and either resource or path".to_owned()));
    }
    if !path.is_empty() {
        return Ok(json!({"nonResourceAttributes": {"verb": verb, "path": path}}));
    }
    let (resource, group) = resource_and_group(call, resource).await?;
    let attributes = json!({"verb": verb, "group": group, "resource": resource, "subresource": argument("subresource")?,
        "name": name, "namespace": namespace});
    let mut spec = json!({"resourceAttributes": attributes});
    if namespace.is_empty() {
        spec["namespaces"] = json!(["*"]);
    }
    Ok(spec)
}

/// Splits `deployments.apps`. Without a group, an object of that kind gives it.
async fn resource_and_group(call: &Call<'_>, word: &str) -> Result<(String, String), ToolError> {
    if let Some((resource, group)) = word.split_once('.') {
        return Ok((resource.to_owned(), group.to_owned()));
    }
    let query = format!("kind:{}", quoted(word));
    let parameters = [("q", query.as_str()), ("limit", "1"), ("facets", "kind")];
    let answer = get(call.api, uri(&format!("{SEARCH}/query"), &parameters)).await?;
    Ok(match list(&answer, "hits").first() {
        Some(hit) => {
            let group = text(hit, "apiVersion").split_once('/').map_or("", |(group, _)| group);
            (text(hit, "resource").to_owned(), group.to_owned())
        }
        None => (word.to_lowercase(), String::new()),
    })
}

fn answer(status: &Value) -> Answer {
    let clusters = list(status, "clusters");
    let complete = clusters.iter().filter(|cluster| text(cluster, "state") == "Complete").count();
    let mut facts = vec![row(["clusters", &clusters.len().to_string(), &format!("{complete} complete")])];
    let groups: Vec<&str> = texts(status, "groups").collect();
    if !groups.is_empty() {
        facts.push(row(["groups", &groups.join(", ")]));
    }
    let mut rows: Vec<Row> = list(status, "grants").iter().map(grant).collect();
    rows.extend(list(status, "roles").iter().map(grant));
    rows.extend(list(status, "indirect").iter().map(path));
    let incomplete = clusters.iter().filter(|cluster| text(cluster, "state") != "Complete");
    let notes = incomplete
        .map(|one| row(["skipped", text(one, "name"), text(one, "state"), text(one, "evaluationError")]))
        .chain(texts(status, "warnings").map(|warning| row(["notice", warning])))
        .collect();
    let table = Answer::table(["cluster", "subject", "namespace", "binding", "role", "rule"], rows);
    Answer { facts, notes, ..table }
}

fn grant(grant: &Value) -> Row {
    let namespace = if text(grant, "scope") == "Cluster" { "*" } else { text(grant, "namespace") };
    let rules = match grant.get("rules") {
        Some(rules) => rules.as_array().into_iter().flatten().map(rule).collect::<Vec<_>>().join("; "),
        None => rule(&grant["rule"]),
    };
    row([
        text(grant, "cluster"),
        &reference(&grant["subject"]),
        namespace,
        &reference(&grant["binding"]),
        &reference(&grant["role"]),
        &rules,
    ])
}

/// `get,list pods.apps (web)`
fn rule(rule: &Value) -> String {
    let join = |field: &str| texts(rule, field).collect::<Vec<_>>().join(",");
    if !list(rule, "nonResourceURLs").is_empty() {
        return format!("{} {}", join("verbs"), join("nonResourceURLs"));
    }
    let groups = join("apiGroups");
    let dot = if groups.is_empty() { "" } else { "." };
    let names = join("resourceNames");
    let names = if names.is_empty() { names } else { format!(" ({names})") };
    format!("{} {}{dot}{groups}{names}", join("verbs"), join("resources"))
}

fn path(path: &Value) -> Row {
    let step = |step: &Value| match step.get("reaches") {
        Some(subject) => format!("{} as {}", text(step, "type"), reference(subject)),
        None => text(step, "type").to_owned(),
    };
    let steps: Vec<String> = list(path, "steps").iter().map(step).collect();
    let from = plain(&path["subjectCluster"]);
    row([text(path, "cluster"), &reference(&path["subject"]), &from, "indirectly", "", &steps.join(", ")])
}
