//! Authorization of requests, independent of where the rules are: in this process or in another server.

use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::user::UserInfo;

/// Decides whether users may carry out actions.
pub trait AccessReviewer: Sync {
    /// Returns the decision about an action; an error if no decision could be made.
    fn review_action(&self, user: &UserInfo, action: &Action) -> impl Future<Output = ApiResult<Decision>> + Send;
}

/// The 403 error for an action that is not allowed; it names user, verb and resource.
pub fn forbidden(user: &str, action: &Action, reason: &str) -> ApiError {
    let (group, resource, name, mut message) = match action {
        Action::Path { verb, path } => ("", "", "", format!("User {user:?} cannot {verb} path {path:?}")),
        Action::Resource { verb, group, resource, subresource, namespace, name } => {
            let full = if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") };
            let scope = match namespace.as_str() {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            let message = format!("User {user:?} cannot {verb} resource {full:?} in API group {group:?} {scope}");
            (group.as_str(), resource.as_str(), name.as_str(), message)
        }
    };
    if !reason.is_empty() {
        message = format!("{message}: {reason}");
    }
    ApiError::forbidden(group, resource, name, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn action(resource: [&str; 3], namespace: &str, name: &str) -> Action {
        let [group, resource, subresource] = resource.map(str::to_owned);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Action::Resource { verb: "get".to_owned(), group, resource, subresource, namespace, name }
    }

    #[rstest]
    #[case::path(Action::Path { verb: "get".to_owned(), path: "/x".to_owned() }, "",
        r#"forbidden: User "eve" cannot get path "/x""#)]
    #[case::path_with_reason(Action::Path { verb: "get".to_owned(), path: "/x".to_owned() }, "no role",
        r#"forbidden: User "eve" cannot get path "/x": no role"#)]
    #[case::cluster_scope(action(["", "nodes", ""], "", ""), "",
        r#"nodes is forbidden: User "eve" cannot get resource "nodes" in API group "" at the cluster scope"#)]
    #[case::subresource(action(["apps", "deployments", "scale"], "a", "web"), "no role",
        r#"deployments.apps "web" is forbidden: User "eve" cannot get resource "deployments/scale" in API group "apps" in the namespace "a": no role"#)]
    fn errors_name_user_verb_and_resource(#[case] action: Action, #[case] reason: &str, #[case] expected: &str) {
        let error = forbidden("eve", &action, reason);
        assert_eq!((error.code, error.message.as_str()), (403, expected));
        assert!(error.details.is_some());
    }
}
