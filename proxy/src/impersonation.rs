//! Hints for callers whose impersonation a member refuses.
//!
//! The impersonator account of a member may impersonate the users, groups and service accounts that a role of the control plane
//! permits to use `clusters/proxy` of the member; the unified auth controller writes these permissions to the member. If the member
//! refuses, the permission is missing in the control plane, but the member's message names only the account. As in Karmada, the
//! message is returned unchanged; a `Warning` header explains it.

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;

use crate::fleetwide::warning;
use crate::{Body, Error, full};

/// Maximum length in bytes of a response that is read. Refusals are shorter.
const MAX_REFUSAL_BYTES: usize = 16 * 1024;

/// ClusterRole of the control plane that `crowsnest install` creates, as Karmada does.
const PROXY_ROLE: &str = "cluster-proxy-admin";

/// Returns a member's response, with a warning if the member refused to impersonate the caller.
pub(crate) async fn add_hint(
    cluster: &ClusterName,
    caller: &str,
    response: Response<Body>,
) -> Result<Response<Body>, Error> {
    if !can_be_refusal(&response) {
        return Ok(response);
    }
    let (mut parts, body) = response.into_parts();
    // Bounded: `can_be_refusal` checks Content-Length.
    let bytes: Bytes = match body.collect().await {
        Ok(read) => read.to_bytes(),
        Err(error) => return Err(Error::Unreachable { cluster: cluster.clone(), reason: error.to_string() }),
    };
    if let Some(subject) = refused_subject(&bytes, caller) {
        parts.headers.append(header::WARNING, warning(&subject.hint(cluster)));
    }
    Ok(Response::from_parts(parts, full(bytes)))
}

/// True for a response whose body can be the `Status` of a refused impersonation: a 403 with uncompressed JSON of at most [`MAX_REFUSAL_BYTES`]
/// bytes, by its Content-Length. A 403 without a length, or in protobuf, has no hint.
fn can_be_refusal<B>(response: &Response<B>) -> bool {
    let text = |name: header::HeaderName| {
        response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let length = text(header::CONTENT_LENGTH).parse::<usize>();
    let is_plain = response.headers().get(header::CONTENT_ENCODING).is_none();
    response.status() == StatusCode::FORBIDDEN
        && text(header::CONTENT_TYPE).starts_with("application/json")
        && is_plain
        && length.is_ok_and(|length| length <= MAX_REFUSAL_BYTES)
}

/// A user, group or service account whose impersonation a member refused.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
    /// Namespace and name.
    ServiceAccount(String, String),
}

impl Subject {
    /// Message that names the missing permission and the command that grants it.
    fn hint(&self, cluster: &ClusterName) -> String {
        let grant = self.grant();
        format!(
            "{self} has no permission for \"clusters/proxy\" of cluster {cluster} in the control plane; grant it, for all clusters, with \
             `{grant}`"
        )
    }

    /// Command that permits the subject to use the proxies of all clusters.
    fn grant(&self) -> String {
        let (name, flag, subject) = match self {
            Self::User(name) => (name.clone(), "user", name.clone()),
            Self::Group(name) => (name.clone(), "group", name.clone()),
            Self::ServiceAccount(namespace, name) => {
                (format!("{namespace}-{name}"), "serviceaccount", format!("{namespace}:{name}"))
            }
        };
        let binding: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '-' }).collect();
        let binding = binding.to_ascii_lowercase();
        format!(
            "kubectl create clusterrolebinding {PROXY_ROLE}-{} --clusterrole={PROXY_ROLE} --{flag}={}",
            shell_quote(&binding),
            shell_quote(&subject)
        )
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(name) => write!(formatter, "User {name:?}"),
            Self::Group(name) => write!(formatter, "Group {name:?}"),
            Self::ServiceAccount(namespace, name) => write!(formatter, "ServiceAccount \"{namespace}/{name}\""),
        }
    }
}

/// Quotes a word for a POSIX shell if necessary.
fn shell_quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The user, service account or group in a `Status` that refuses impersonation; `None` for other errors.
fn refused_subject(status: &[u8], caller: &str) -> Option<Subject> {
    #[derive(Deserialize)]
    struct Status {
        message: String,
        #[serde(default)]
        details: Details,
    }
    #[derive(Default, Deserialize)]
    struct Details {
        #[serde(default)]
        name: String,
    }
    let status: Status = serde_json::from_slice(status).ok()?;
    let (_, rest) = status.message.split_once(" cannot impersonate")?;
    let account = caller.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    // Since Kubernetes 1.36, the first refused check may be that of the request (`impersonate-on:user-info:list`), which
    // names its resource or path.
    if rest.starts_with("-on:") {
        return Some(match account {
            Some((namespace, name)) => Subject::ServiceAccount(namespace.to_owned(), name.to_owned()),
            None => Subject::User(caller.to_owned()),
        });
    }
    let (_, rest) = rest.split_once(" resource \"")?;
    let (resource, _) = rest.split_once('"')?;
    match (resource, account) {
        ("users", _) if status.details.name == caller => Some(Subject::User(status.details.name)),
        ("serviceaccounts", Some((namespace, name))) if status.details.name == name => {
            Some(Subject::ServiceAccount(namespace.to_owned(), name.to_owned()))
        }
        ("groups", _) => Some(Subject::Group(status.details.name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ACCOUNT: &str = "system:serviceaccount:karmada-cluster:karmada-impersonator";

    fn refusal(resource: &str, name: &str) -> Vec<u8> {
        let message = format!(
            "{resource} \"{name}\" is forbidden: User \"{ACCOUNT}\" cannot impersonate resource \"{resource}\" in API group \"\" at the cluster scope"
        );
        let details = json!({"name": name, "kind": resource});
        json!({"kind": "Status", "message": message, "details": details, "code": 403}).to_string().into_bytes()
    }

    #[rstest::rstest]
    #[case::user(
        "users",
        "admin",
        "admin",
        "User \"admin\"",
        "cluster-proxy-admin-admin --clusterrole=cluster-proxy-admin --user=admin"
    )]
    #[case::email_address(
        "users",
        "Ann Lee@x.io",
        "Ann Lee@x.io",
        "User \"Ann Lee@x.io\"",
        "cluster-proxy-admin-ann-lee-x.io --clusterrole=cluster-proxy-admin --user='Ann Lee@x.io'"
    )]
    #[case::group(
        "groups",
        "dev",
        "ann",
        "Group \"dev\"",
        "cluster-proxy-admin-dev --clusterrole=cluster-proxy-admin --group=dev"
    )]
    #[case::account(
        "serviceaccounts",
        "bot",
        "system:serviceaccount:ci:bot",
        "ServiceAccount \"ci/bot\"",
        "cluster-proxy-admin-ci-bot --clusterrole=cluster-proxy-admin --serviceaccount=ci:bot"
    )]
    fn refusals_name_the_missing_permission(
        #[case] resource: &str,
        #[case] name: &str,
        #[case] caller: &str,
        #[case] displayed: &str,
        #[case] grant: &str,
    ) {
        let subject = refused_subject(&refusal(resource, name), caller).unwrap();
        assert_eq!(
            (subject.to_string().as_str(), subject.grant()),
            (displayed, format!("kubectl create clusterrolebinding {grant}"))
        );
    }

    #[rstest::rstest]
    #[case::user("ann", Subject::User("ann".into()))]
    #[case::account("system:serviceaccount:ci:bot", Subject::ServiceAccount("ci".into(), "bot".into()))]
    fn refusals_of_constrained_impersonation_concern_the_caller(
        #[case] caller: &str,
        #[case] expected: Subject,
        #[values("list resource \"pods\" in API group \"\" at the cluster scope", "get path \"/api\"")] refused: &str,
    ) {
        let message = format!("forbidden: User \"{ACCOUNT}\" cannot impersonate-on:user-info:{refused}");
        let status = json!({"message": message, "details": {"name": "", "kind": "pods"}}).to_string();
        assert_eq!(refused_subject(status.as_bytes(), caller), Some(expected));
    }

    #[rstest::rstest]
    #[case::of_another_user(refusal("users", "eve"), "ann")]
    #[case::of_pods(json!({"message": "pods is forbidden: User \"ann\" cannot list resource \"pods\"", "details": {"name": ""}}).to_string().into_bytes(), "ann")]
    #[case::not_json(b"forbidden".to_vec(), "ann")]
    fn other_refusals_have_no_hint(#[case] body: Vec<u8>, #[case] caller: &str) {
        assert_eq!(refused_subject(&body, caller), None);
    }
}
