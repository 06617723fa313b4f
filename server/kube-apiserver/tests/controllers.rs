//! What users see of the control plane's controllers: namespaces empty, garbage goes, tokens and certificates appear.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use crowsnest_apimachinery::user::UserInfo;
use crowsnest_kube_apiserver::controllers::{self, Controllers};
use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::{Value, json};

async fn start(controllers: Controllers) -> (ApiServer, Client) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    controllers::start(&server, controllers);
    let client = server.admin();
    (server, client)
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

async fn create<K>(api: &Api<K>, value: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &object(value)).await.unwrap()
}

#[tokio::test]
async fn a_namespace_goes_when_its_content_may_go() {
    let (server, client) = start(Controllers::default()).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    create(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "shop");
    create(&maps, json!({"metadata": {"name": "free"}})).await;
    create(&maps, json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}})).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();

    let told = |namespace: Option<&Namespace>| {
        let conditions = namespace.and_then(|n| n.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| {
            c.type_ == "NamespaceFinalizersRemaining"
                && c.message.as_deref()
                    == Some("Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances")
        })
    };
    await_condition(namespaces.clone(), "shop", told).await.unwrap();
    assert!(maps.get_opt("free").await.unwrap().is_none());
    let late = maps.create(&PostParams::default(), &object(json!({"metadata": {"name": "late"}}))).await.unwrap_err();
    assert!(late.to_string().contains("because it is being terminated"), "{late}");

    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &release).await.unwrap();
    await_condition(namespaces.clone(), "shop", |n: Option<&Namespace>| n.is_none()).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn dependents_follow_their_owner_as_the_policy_says() {
    let (server, client) = start(Controllers::default()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    for (name, policy) in [
        ("background", PropagationPolicy::Background),
        ("foreground", PropagationPolicy::Foreground),
        ("orphan", PropagationPolicy::Orphan),
    ] {
        let owner = create(&maps, json!({"metadata": {"name": name}})).await;
        let reference = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner.metadata.uid, "blockOwnerDeletion": true,
        });
        let child = create(&secrets, json!({"metadata": {"name": name, "ownerReferences": [reference]}})).await;
        let options = DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() };
        maps.delete(name, &options).await.unwrap();
        await_condition(maps.clone(), name, |owner: Option<&ConfigMap>| owner.is_none()).await.unwrap();
        if matches!(policy, PropagationPolicy::Orphan) {
            let orphaned = |s: Option<&Secret>| s.is_some_and(|s| s.metadata.owner_references.is_none());
            await_condition(secrets.clone(), name, orphaned).await.unwrap();
        } else {
            let uid = child.metadata.uid.unwrap();
            await_condition(secrets.clone(), name, conditions::is_deleted(&uid)).await.unwrap();
        }
    }
    server.stop().await.unwrap();
}

/// As while the server of a webhook starts.
#[tokio::test]
async fn a_dependent_that_could_not_be_deleted_goes_later() {
    let (server, client) = start(Controllers::default()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let owner = create(&maps, json!({"metadata": {"name": "owner"}})).await;
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid});
    create(&secrets, json!({"metadata": {"name": "child", "ownerReferences": [reference]}})).await;
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let nobody = json!({"metadata": {"name": "nobody"}, "webhooks": [{
        "name": "nobody.example.com", "clientConfig": {"url": "https://127.0.0.1:9/"}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["DELETE"]}],
    }]});
    create(&hooks, nobody).await;
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    let refused = secrets.delete("child", &DeleteParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains("nobody.example.com"), "{refused}");
    hooks.delete("nobody", &DeleteParams::default()).await.unwrap();
    await_condition(secrets, "child", |child: Option<&Secret>| child.is_none()).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_token_secret_speaks_for_its_account_until_the_account_goes() {
    let (server, client) = start(Controllers { service_accounts: true, ..Controllers::default() }).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    await_condition(accounts.clone(), "default", |a: Option<&ServiceAccount>| a.is_some()).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    let account = json!({"kubernetes.io/service-account.name": "default"});
    let secret = |name: &str| json!({"metadata": {"name": name, "annotations": account}, "type": "kubernetes.io/service-account-token"});
    // One that cannot be filled keeps no other from it.
    let mut immutable = secret("fixed");
    immutable["immutable"] = true.into();
    create(&secrets, immutable).await;
    create(&secrets, secret("token")).await;
    let filled = |s: Option<&Secret>| s.and_then(|s| s.data.as_ref()).is_some_and(|d| d.contains_key("token"));
    let secret = await_condition(secrets.clone(), "token", filled).await.unwrap().unwrap();
    let token = String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap();

    let who = async |token: &str| {
        let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("authorization", format!("Bearer {token}"))
            .body(axum::body::Body::from(json!({}).to_string()))
            .unwrap();
        let response = tower::ServiceExt::oneshot(server.router(), request).await.unwrap();
        let status = response.status().as_u16();
        (status, axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap())
    };
    let (status, body) = who(&token).await;
    assert_eq!(status, 201, "{body:?}");
    let review: SelfSubjectReview = serde_json::from_slice(&body).unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:default"));
    assert_eq!(who("nonsense").await.0, 401);

    // A finalizer keeps the Secret, not its token.
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    secrets.patch("token", &PatchParams::default(), &Patch::Merge(&held)).await.unwrap();
    secrets.delete("token", &DeleteParams::default()).await.unwrap();
    assert_eq!(who(&token).await.0, 401);
    let free = json!({"metadata": {"finalizers": null}});
    secrets.patch("token", &PatchParams::default(), &Patch::Merge(&free)).await.unwrap();

    accounts.delete("default", &DeleteParams::default()).await.unwrap();
    await_condition(secrets, "token", |s: Option<&Secret>| s.is_none()).await.unwrap();
    assert_eq!(who(&token).await.0, 401);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn users_do_what_their_roles_allow() {
    let (server, admin) = start(Controllers::default()).await;
    let maps = |client: &Client| Api::<ConfigMap>::namespaced(client.clone(), "default");
    let user = server.client(UserInfo { name: "jane".into(), ..UserInfo::default() });
    let refused = maps(&user).list(&Default::default()).await.unwrap_err();
    let expected = "configmaps is forbidden: User \"jane\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\"";
    assert!(refused.to_string().contains(expected), "{refused}");

    let bindings = Api::<k8s_openapi::api::rbac::v1::RoleBinding>::namespaced(admin.clone(), "default");
    let binding = json!({
        "metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    create(&bindings, binding).await;
    maps(&user).list(&Default::default()).await.unwrap();
    let write = maps(&user).create(&PostParams::default(), &object(json!({"metadata": {"name": "x"}}))).await;
    assert!(write.is_err());
    server.stop().await.unwrap();
}
