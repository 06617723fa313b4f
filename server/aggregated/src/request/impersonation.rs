//! Impersonation by callers that do not connect through a front proxy. The control plane reviews whether it is permitted.

use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Attributes;
use crowsnest_apiserver::authz::AccessReviewer;

use super::authentication::DelegatedAuth;

impl DelegatedAuth {
    /// The identity with which `caller` sends `request` as the user `requested`, and the verb that permits it if the mode
    /// is a constrained one. If all modes are refused, the error is that of the mode that was tried first.
    pub(super) async fn impersonate(
        &self,
        caller: &UserInfo,
        requested: &UserInfo,
        request: &Attributes,
    ) -> Result<(UserInfo, Option<&'static str>), ApiError> {
        let reviewer = PermissionReviewer { delegated: self, request };
        let action = Action::from(request.clone());
        let (user, mode) = self.impersonator.impersonate(&reviewer, caller, requested, &action).await?;
        Ok((user, mode.constraint()))
    }
}

/// Reviews the permissions to impersonate for a request.
struct PermissionReviewer<'a> {
    delegated: &'a DelegatedAuth,
    request: &'a Attributes,
}

impl AccessReviewer for PermissionReviewer<'_> {
    async fn review_action(&self, user: &UserInfo, action: &Action) -> ApiResult<Decision> {
        Ok(self.delegated.review(user, &with_version(action, self.request)).await?.into())
    }
}

/// The attributes to review, with the API version as in kube-apiserver: authorizers other than RBAC may use it.
fn with_version(action: &Action, request: &Attributes) -> Attributes {
    let mut attributes = Attributes::from(action.clone());
    let is_request = attributes.verb.starts_with("impersonate-on:");
    attributes.version = if is_request { request.version.clone() } else { "v1".to_owned() };
    attributes
}

#[cfg(test)]
mod tests {
    use crowsnest_kube_apiserver::{ApiServer, Config, Data};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
    use kube::api::{Api, PostParams};
    use serde_json::{Value, json};

    use super::*;

    /// Grants `rules` to the user `ops`.
    async fn grant(server: &ApiServer, name: &str, rules: Value) {
        let group = "rbac.authorization.k8s.io";
        let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules})).unwrap();
        let binding: ClusterRoleBinding = serde_json::from_value(json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "ops"}]}))
        .unwrap();
        Api::all(server.admin()).create(&PostParams::default(), &role).await.unwrap();
        Api::all(server.admin()).create(&PostParams::default(), &binding).await.unwrap();
    }

    #[test]
    fn reviews_have_the_version_of_the_request_or_v1() {
        let request = Attributes { verb: "list".to_owned(), version: "v1beta1".to_owned(), ..Attributes::default() };
        for (verb, version) in
            [("impersonate-on:user-info:list", "v1beta1"), ("impersonate:user-info", "v1"), ("impersonate", "v1")]
        {
            let action = Action::from(Attributes { verb: verb.to_owned(), ..Attributes::default() });
            assert_eq!(with_version(&action, &request).version, version, "{verb}");
        }
    }

    #[tokio::test]
    async fn constrained_modes_are_tried_before_the_original_one() {
        let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
        let authentication = "authentication.k8s.io";
        let constrained = json!([
            {"verbs": ["impersonate:user-info"], "apiGroups": [authentication], "resources": ["users"], "resourceNames": ["jane"]},
            {"verbs": ["impersonate-on:user-info:list"], "apiGroups": ["cluster.karmada.io"], "resources": ["clusters"]},
        ]);
        grant(&server, "constrained", constrained).await;
        let original =
            json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["john"]}]);
        grant(&server, "original", original).await;

        let delegated = DelegatedAuth::new(server.admin());
        let request = |verb: &str| Attributes {
            verb: verb.to_owned(),
            group: "cluster.karmada.io".to_owned(),
            resource: "clusters".to_owned(),
            ..Attributes::default()
        };
        for (caller, groups, name, verb, expected) in [
            ("ops", &[][..], "jane", "list", Ok(Some("impersonate:user-info"))),
            ("ops", &["system:masters"], "jane", "list", Err("impersonating the system:masters group is not allowed")),
            ("ops", &[], "jane", "delete", Err("cannot impersonate-on:user-info:delete resource \"clusters\"")),
            ("ops", &[], "john", "list", Ok(None)),
            // The mode by which the caller impersonated last is tried first; now it is the original one.
            ("ops", &[], "mary", "list", Err("User \"ops\" cannot impersonate resource \"users\"")),
            (
                "eve",
                &[],
                "jane",
                "list",
                Err("User \"eve\" cannot impersonate-on:user-info:list resource \"clusters\""),
            ),
        ] {
            let caller = UserInfo::new(caller, ["system:authenticated"]);
            let requested = UserInfo::new(name, groups.iter().copied());
            match (delegated.impersonate(&caller, &requested, &request(verb)).await, expected) {
                (Ok((user, constraint)), Ok(expected)) => {
                    assert_eq!((user, constraint), (UserInfo::new(name, ["system:authenticated"]), expected));
                }
                (Err(error), Err(expected)) => {
                    assert!(error.code == 403 && error.message.contains(expected), "{name} {verb}: {error}");
                }
                (result, expected) => panic!("{name} {verb}: {result:?} instead of {expected:?}"),
            }
        }
        server.stop().await.unwrap();
    }

    #[tokio::test]
    async fn failed_reviews_are_not_refusals() {
        let unreachable = kube::Config::new(http::Uri::from_static("http://127.0.0.1:9"));
        let delegated = DelegatedAuth::new(kube::Client::try_from(unreachable).unwrap());
        let (caller, requested) = (UserInfo::new("ops", ["dev"]), UserInfo::new("jane", ["dev"]));
        let error = delegated.impersonate(&caller, &requested, &Attributes::default()).await.unwrap_err();
        assert!(error.code >= 500, "{error}");
    }
}
