//! `who_can`: who is allowed an action, or what a subject is allowed, by the RBAC of each cluster.

use crowsnest_apimachinery::unstructured::{list, text, texts};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::cursor::Position;
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
    let mut question = match (is_about_subject, is_about_action) {
        (true, false) => Question { kind: "SubjectRulesReview", spec: subject(call)?, notices: Vec::new() },
        (false, true) => action(call).await?,
        _ => {
            let message = "set verb and resource (or path), or one of user, group and service_account";
            return Err(ToolError::Input(message.to_owned()));
        }
    };
    question.spec["clusters"] = json!(call.arguments.texts("clusters", MAX_CLUSTERS)?);
    match call.position {
        Some(Position::Offset(_)) => indirect_page(call, question).await,
        _ => grants_page(call, question).await,
    }
}

/// A review without its page.
struct Question {
    kind: &'static str,
    spec: Value,
    notices: Vec<Row>,
}

/// A page of grants. Indirect paths are in it if all of them fit behind the last grants; otherwise they are in pages of
/// their own, behind those of the grants.
async fn grants_page(call: &Call<'_>, mut question: Question) -> Result<Page, ToolError> {
    let wants_indirect = call.arguments.flag("indirect")?;
    let mut includes_indirect = wants_indirect && call.position.is_none();
    question.spec["continue"] = call.token().into();
    let mut limit = ROWS;
    loop {
        question.spec["indirect"] = includes_indirect.into();
        question.spec["limit"] = limit.into();
        let status = review(call, &question).await?;
        let mut answer = answer(&status, &question.notices);
        let shown = |answer: &Answer| answer.render(0, call.budget, |_| Some("c".repeat(300))).shown;
        let token = Some(text(&status, "continue")).filter(|token| !token.is_empty());
        if includes_indirect && token.is_none() && shown(&answer) == answer.rows.len() {
            return Ok(Page { answer, next: Next::Position(None) });
        }
        let grants = answer.rows.len() - list(&status, "indirect").len();
        answer.rows.truncate(grants);
        if wants_indirect {
            answer.notes.insert(0, row(["notice", "indirect paths follow behind the last grants: continue at `next`"]));
        }
        // A token continues after the rows of a page, so a page that is too large is requested again with the rows that fit.
        let shown = shown(&answer);
        if shown < grants && shown > 0 && limit > shown {
            (limit, includes_indirect) = (shown, false);
            continue;
        }
        let next = match token {
            Some(token) => Some(Position::Token(token.to_owned())),
            None => wants_indirect.then_some(Position::Offset(0)),
        };
        return Ok(Page { answer, next: Next::Position(next) });
    }
}

/// Indirect paths, behind the last page of grants. The API returns all of them with its first page.
async fn indirect_page(call: &Call<'_>, mut question: Question) -> Result<Page, ToolError> {
    question.spec["indirect"] = true.into();
    question.spec["limit"] = 1.into();
    let status = review(call, &question).await?;
    let mut answer = answer(&status, &question.notices);
    let paths = list(&status, "indirect").len();
    answer.rows.drain(..answer.rows.len() - paths);
    answer.facts.push(row(["indirect paths", &paths.to_string()]));
    Ok(Page { answer, next: Next::Offset })
}

/// The status of a review.
async fn review(call: &Call<'_>, Question { kind, spec, .. }: &Question) -> Result<Value, ToolError> {
    let body = json!({"apiVersion": "access.crowsnest.io/v1alpha1", "kind": kind, "spec": spec});
    let resource = if *kind == "SubjectRulesReview" { "subjectrulesreviews" } else { "resourceaccessreviews" };
    let mut review = post(call.api, format!("{ACCESS}/{resource}"), body).await?;
    Ok(review.get_mut("status").map(Value::take).unwrap_or_default())
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

async fn action(call: &Call<'_>) -> Result<Question, ToolError> {
    let question = |spec, notices| Question { kind: "ResourceAccessReview", spec, notices };
    let argument = |name| call.arguments.text_or_empty(name);
    let (verb, path, namespace) = (argument("verb")?, argument("path")?, argument("namespace")?);
    let (resource, name) = (argument("resource")?, argument("name")?);
    if verb.is_empty() || resource.is_empty() == path.is_empty() {
        return Err(ToolError::Input("set verb, and either resource or path".to_owned()));
    }
    if !path.is_empty() {
        return Ok(question(json!({"nonResourceAttributes": {"verb": verb, "path": path}}), Vec::new()));
    }
    let ResourceName { resource, group, notices } = resource_name(call, resource).await?;
    let attributes = json!({"verb": verb, "group": group, "resource": resource, "subresource": argument("subresource")?,
        "name": name, "namespace": namespace});
    let mut spec = json!({"resourceAttributes": attributes});
    if namespace.is_empty() {
        spec["namespaces"] = json!(["*"]);
    }
    Ok(question(spec, notices))
}

/// The resource of a review, with notices about how it was found.
struct ResourceName {
    resource: String,
    group: String,
    notices: Vec<Row>,
}

/// Splits `deployments.apps`. Without a group, an object of that kind gives it.
async fn resource_name(call: &Call<'_>, word: &str) -> Result<ResourceName, ToolError> {
    if let Some((resource, group)) = word.split_once('.') {
        return Ok(ResourceName { resource: resource.to_owned(), group: group.to_owned(), notices: Vec::new() });
    }
    let query = format!("kind:{}", quoted(word));
    let parameters = [("q", query.as_str()), ("limit", "1"), ("facets", "kind")];
    let answer = get(call.api, uri(&format!("{SEARCH}/query"), &parameters)).await?;
    Ok(match list(&answer, "hits").first() {
        Some(hit) => {
            let group = text(hit, "apiVersion").split_once('/').map_or("", |(group, _)| group);
            let resource = text(hit, "resource").to_owned();
            ResourceName { resource, group: group.to_owned(), notices: Vec::new() }
        }
        None => {
            let notice = format!(
                "you can read no object of {word:?}, so its group is unknown: it was reviewed as a resource of the core \
                 group; name the group of another one, as in deployments.apps"
            );
            let notices = vec![row(["notice", &notice])];
            ResourceName { resource: word.to_lowercase(), group: String::new(), notices }
        }
    })
}

/// Grants, then indirect paths.
fn answer(status: &Value, notices: &[Row]) -> Answer {
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
    let skipped =
        incomplete.map(|one| row(["skipped", text(one, "name"), text(one, "state"), text(one, "evaluationError")]));
    let notes = notices
        .iter()
        .cloned()
        .chain(skipped)
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
