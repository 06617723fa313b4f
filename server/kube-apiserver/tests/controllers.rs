//! Controllers of the control plane as users see them: namespaces, garbage collection, tokens, certificates, quotas.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use crowsnest_apimachinery::user::UserInfo;
use crowsnest_kube_apiserver::controllers::{self, Controllers};
use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
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

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "example.com/main"}]}})
}

async fn create<K>(api: &Api<K>, value: Value) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &object(value)).await.unwrap()
}

#[tokio::test]
async fn namespaces_are_deleted_after_their_content() {
    let (server, client) = start(Controllers::default()).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    create(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "shop");
    create(&maps, json!({"metadata": {"name": "free"}})).await;
    create(&maps, json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}})).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();

    let reports_finalizers = |namespace: Option<&Namespace>| {
        let conditions = namespace.and_then(|n| n.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| {
            c.type_ == "NamespaceFinalizersRemaining"
                && c.message.as_deref()
                    == Some("Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances")
        })
    };
    await_condition(namespaces.clone(), "shop", reports_finalizers).await.unwrap();
    assert!(maps.get_opt("free").await.unwrap().is_none());
    let late = maps.create(&PostParams::default(), &object(json!({"metadata": {"name": "late"}}))).await.unwrap_err();
    assert!(late.to_string().contains("because it is being terminated"), "{late}");

    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &release).await.unwrap();
    await_condition(namespaces.clone(), "shop", |n: Option<&Namespace>| n.is_none()).await.unwrap();
    server.stop().await.unwrap();
}

/// Content is deleted only after all of it could be listed.
#[tokio::test]
async fn namespaces_wait_for_aggregated_apis_without_a_server() {
    let (server, client) = start(Controllers::default()).await;
    let services: Api<APIService> = Api::all(client.clone());
    let name = "v1alpha1.absent.example.com";
    let spec = json!({"group": "absent.example.com", "version": "v1alpha1", "groupPriorityMinimum": 100, "versionPriority": 10,
        "insecureSkipTLSVerify": true, "service": {"name": "absent", "namespace": "default"}});
    create(&services, json!({"metadata": {"name": name}, "spec": spec})).await;
    let is_unavailable = |service: Option<&APIService>| {
        let conditions = service.and_then(|s| s.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| c.type_ == "Available" && c.status == "False")
    };
    await_condition(services.clone(), name, is_unavailable).await.unwrap();

    let namespaces: Api<Namespace> = Api::all(client.clone());
    create(&namespaces, json!({"metadata": {"name": "doomed"}})).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "doomed");
    create(&maps, json!({"metadata": {"name": "content"}})).await;
    namespaces.delete("doomed", &DeleteParams::default()).await.unwrap();
    let reports_discovery = |namespace: Option<&Namespace>| {
        let conditions = namespace.and_then(|n| n.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| {
            (c.type_.as_str(), c.status.as_str()) == ("NamespaceDeletionDiscoveryFailure", "True")
                && c.reason.as_deref() == Some("DiscoveryFailed")
                && c.message.as_deref().is_some_and(|message| message.contains("absent.example.com/v1alpha1"))
        })
    };
    await_condition(namespaces.clone(), "doomed", reports_discovery).await.unwrap();
    assert!(maps.get_opt("content").await.unwrap().is_none());

    services.delete(name, &DeleteParams::default()).await.unwrap();
    await_condition(namespaces, "doomed", |n: Option<&Namespace>| n.is_none()).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn finished_jobs_are_deleted_after_their_ttl() {
    let (server, client) = start(Controllers::default()).await;
    let jobs: Api<Job> = Api::namespaced(client, "default");
    for (name, ttl) in [("expired", json!(0)), ("recent", json!(3600)), ("kept", Value::Null)] {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.com/main"}]});
        let spec = json!({"ttlSecondsAfterFinished": ttl, "template": {"spec": pod}});
        create(&jobs, json!({"metadata": {"name": name}, "spec": spec})).await;
        let times = json!({"lastProbeTime": "2026-01-01T00:00:00Z", "lastTransitionTime": jiff::Timestamp::now()});
        let conditions = ["SuccessCriteriaMet", "Complete"].map(|condition| {
            let mut condition = json!({"type": condition, "status": "True"});
            condition.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            condition
        });
        let now = jiff::Timestamp::now();
        let status =
            json!({"status": {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}});
        jobs.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }
    await_condition(jobs.clone(), "expired", |job: Option<&Job>| {
        job.is_none_or(|job| job.metadata.deletion_timestamp.is_some())
    })
    .await
    .unwrap();
    for name in ["recent", "kept"] {
        assert!(jobs.get(name).await.unwrap().metadata.deletion_timestamp.is_none(), "{name}");
    }
    server.stop().await.unwrap();
}

/// OrderedNamespaceDeletion (KEP-5080).
#[tokio::test]
async fn pods_are_deleted_before_other_content() {
    let (server, client) = start(Controllers::default()).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    create(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let (maps, pods): (Api<ConfigMap>, Api<Pod>) =
        (Api::namespaced(client.clone(), "shop"), Api::namespaced(client, "shop"));
    create(&maps, json!({"metadata": {"name": "settings"}})).await;
    let mut pod = pod("web");
    pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(&pods, pod).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();

    let reported = |namespace: Option<&Namespace>| {
        let conditions = namespace.and_then(|n| n.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| c.type_ == "NamespaceDeletionContentFailure" && c.status == "False")
    };
    await_condition(namespaces.clone(), "shop", reported).await.unwrap();
    assert!(pods.get("web").await.unwrap().metadata.deletion_timestamp.is_some());
    assert!(maps.get("settings").await.unwrap().metadata.deletion_timestamp.is_none());

    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch("web", &PatchParams::default(), &release).await.unwrap();
    await_condition(namespaces, "shop", |n: Option<&Namespace>| n.is_none()).await.unwrap();
    assert!(maps.get_opt("settings").await.unwrap().is_none());
    server.stop().await.unwrap();
}

#[tokio::test]
async fn owner_cycles_are_deleted() {
    let (server, client) = start(Controllers::default()).await;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let names = ["one", "two", "three"];
    let mut uids = Vec::new();
    for name in names {
        uids.push(create(&pods, pod(name)).await.metadata.uid.unwrap());
    }
    // Each pod is owned by the previous one.
    for (index, name) in names.iter().enumerate() {
        let owner = (index + 2) % 3;
        let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": names[owner], "uid": uids[owner],
            "controller": true, "blockOwnerDeletion": true});
        let patch = Patch::Merge(json!({"metadata": {"ownerReferences": [reference]}}));
        pods.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
    pods.delete("one", &DeleteParams::foreground()).await.unwrap();
    for name in names {
        await_condition(pods.clone(), name, |pod: Option<&Pod>| pod.is_none()).await.unwrap();
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn dependents_with_another_owner_are_not_deleted() {
    let (server, client) = start(Controllers::default()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    let mut references = Vec::new();
    for name in ["leaves", "stays"] {
        let owner = create(&maps, json!({"metadata": {"name": name}})).await;
        references.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner.metadata.uid,
            "blockOwnerDeletion": true}));
    }
    create(&secrets, json!({"metadata": {"name": "shared", "ownerReferences": references}})).await;
    create(&secrets, json!({"metadata": {"name": "own", "ownerReferences": [references[0]]}})).await;
    maps.delete("leaves", &DeleteParams::foreground()).await.unwrap();
    await_condition(maps.clone(), "leaves", |owner: Option<&ConfigMap>| owner.is_none()).await.unwrap();
    assert!(secrets.get_opt("own").await.unwrap().is_none());
    let owners = secrets.get("shared").await.unwrap().metadata.owner_references.unwrap();
    assert_eq!(owners.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>(), ["stays"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn dependents_follow_the_propagation_policy() {
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

/// The webhook simulates one whose server has not started yet.
#[tokio::test]
async fn failed_deletions_of_dependents_are_retried() {
    let (server, client) = start(Controllers::default()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let owner = create(&maps, json!({"metadata": {"name": "owner"}})).await;
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid});
    create(&secrets, json!({"metadata": {"name": "child", "ownerReferences": [reference]}})).await;
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let unreachable = json!({"metadata": {"name": "unreachable"}, "webhooks": [{
        "name": "unreachable.example.com", "clientConfig": {"url": "https://127.0.0.1:9/"}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["DELETE"]}],
    }]});
    create(&hooks, unreachable).await;
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    let error = secrets.delete("child", &DeleteParams::default()).await.unwrap_err();
    assert!(error.to_string().contains("unreachable.example.com"), "{error}");
    hooks.delete("unreachable", &DeleteParams::default()).await.unwrap();
    await_condition(secrets, "child", |child: Option<&Secret>| child.is_none()).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn token_secrets_are_valid_while_their_account_exists() {
    let (server, client) = start(service_account_controllers()).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    await_condition(accounts.clone(), "default", |a: Option<&ServiceAccount>| a.is_some()).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    let account = json!({"kubernetes.io/service-account.name": "default"});
    let secret = |name: &str| json!({"metadata": {"name": name, "annotations": account}, "type": "kubernetes.io/service-account-token"});
    // A Secret that cannot be filled does not block others.
    let mut immutable = secret("fixed");
    immutable["immutable"] = true.into();
    create(&secrets, immutable).await;
    create(&secrets, secret("token")).await;
    let filled = |s: Option<&Secret>| s.and_then(|s| s.data.as_ref()).is_some_and(|d| d.contains_key("token"));
    let secret = await_condition(secrets.clone(), "token", filled).await.unwrap().unwrap();
    let token = String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap();

    let review_self = async |token: &str| {
        let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("authorization", format!("Bearer {token}"))
            .body(axum::body::Body::from(json!({}).to_string()))
            .unwrap();
        let response = tower::ServiceExt::oneshot(server.router(), request).await.unwrap();
        let status = response.status().as_u16();
        (status, axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap())
    };
    let (status, body) = review_self(&token).await;
    assert_eq!(status, 201, "{body:?}");
    let review: SelfSubjectReview = serde_json::from_slice(&body).unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:default"));
    assert_eq!(review_self("nonsense").await.0, 401);

    // A finalizer keeps the Secret, but its token becomes invalid.
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    secrets.patch("token", &PatchParams::default(), &Patch::Merge(&held)).await.unwrap();
    secrets.delete("token", &DeleteParams::default()).await.unwrap();
    assert_eq!(review_self(&token).await.0, 401);
    let free = json!({"metadata": {"finalizers": null}});
    secrets.patch("token", &PatchParams::default(), &Patch::Merge(&free)).await.unwrap();

    accounts.delete("default", &DeleteParams::default()).await.unwrap();
    await_condition(secrets, "token", |s: Option<&Secret>| s.is_none()).await.unwrap();
    assert_eq!(review_self(&token).await.0, 401);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn roles_authorize_users() {
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

fn service_account_controllers() -> Controllers {
    Controllers { service_accounts: true, ..Controllers::default() }
}

#[tokio::test]
async fn deleted_root_certificates_are_restored() {
    let (server, client) = start(service_account_controllers()).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let certificate = server.authority().certificate();
    let has_certificate = |map: Option<&ConfigMap>| {
        let data = map.and_then(|map| map.data.as_ref());
        data.is_some_and(|data| data.len() == 1 && data.get("ca.crt").is_some_and(|found| found == certificate))
    };
    let first = await_condition(maps.clone(), "kube-root-ca.crt", has_certificate).await.unwrap().unwrap();
    maps.delete("kube-root-ca.crt", &DeleteParams::default()).await.unwrap();
    let is_new =
        |map: Option<&ConfigMap>| has_certificate(map) && map.is_some_and(|map| map.metadata.uid != first.metadata.uid);
    await_condition(maps.clone(), "kube-root-ca.crt", is_new).await.unwrap();
    let change = Patch::Merge(json!({"data": {"ca.crt": "", "more": "x"}}));
    let changed = maps.patch("kube-root-ca.crt", &PatchParams::default(), &change).await.unwrap();
    assert_eq!(changed.data.unwrap()["more"], "x");
    await_condition(maps, "kube-root-ca.crt", has_certificate).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn pods_get_a_service_account_and_its_token() {
    let (server, client) = start(service_account_controllers()).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    create(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
    // Creation waits for the default account of the new namespace.
    let spec = create(&pods, pod("plain")).await.spec.unwrap();
    assert_eq!(spec.service_account_name.as_deref(), Some("default"));
    assert_eq!(spec.service_account, spec.service_account_name);
    let volume = spec.volumes.unwrap().remove(0);
    assert!(volume.name.starts_with("kube-api-access-"), "{}", volume.name);
    let sources = volume.projected.unwrap().sources.unwrap();
    assert_eq!(sources[0].service_account_token.as_ref().unwrap().expiration_seconds, Some(3607));
    let mount = &spec.containers[0].volume_mounts.as_ref().unwrap()[0];
    assert_eq!((&mount.name, mount.read_only), (&volume.name, Some(true)));
    assert_eq!(mount.mount_path, "/var/run/secrets/kubernetes.io/serviceaccount");

    let accounts: Api<ServiceAccount> = Api::namespaced(client, "shop");
    let account = json!({"metadata": {"name": "quiet"}, "automountServiceAccountToken": false, "imagePullSecrets": [{"name": "pull"}]});
    create(&accounts, account).await;
    let mut quiet = pod("quiet");
    quiet["spec"]["serviceAccountName"] = "quiet".into();
    let spec = create(&pods, quiet).await.spec.unwrap();
    assert_eq!((spec.volumes, spec.image_pull_secrets.unwrap()[0].name.as_str()), (None, "pull"));

    let mut stray = pod("stray");
    stray["spec"]["serviceAccountName"] = "nobody".into();
    let refused = pods.create(&PostParams::default(), &object(stray)).await.unwrap_err().to_string();
    let expected = "pods \"stray\" is forbidden: error looking up service account shop/nobody: serviceaccount \"nobody\" not found";
    assert!(refused.contains(expected), "{refused}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn quotas_count_objects_and_limit_them() {
    let (server, client) = start(Controllers { quotas: true, ..Controllers::default() }).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "default");
    let hard = json!({"services": "2", "services.nodeports": "1", "services.loadbalancers": "1", "pods": "5", "count/configmaps": "9"});
    create(&quotas, json!({"metadata": {"name": "all"}, "spec": {"hard": hard}})).await;
    for (name, scope) in [("long", "NotTerminating"), ("short", "Terminating")] {
        create(&quotas, json!({"metadata": {"name": name}, "spec": {"hard": {"pods": "1", "requests.cpu": "1"}, "scopes": [scope]}})).await;
    }
    let wait_for_usage = async |name: &str, expected: Value| {
        let counted = |quota: Option<&ResourceQuota>| {
            let used = quota.and_then(|quota| quota.status.as_ref()).and_then(|status| status.used.as_ref());
            used.is_some_and(|used| serde_json::to_value(used).unwrap() == expected)
        };
        await_condition(quotas.clone(), name, counted).await.unwrap();
    };
    let usage = |services: &str, ports: &str, balancers: &str, pods: &str, maps: &str| {
        json!({"services": services, "services.nodeports": ports, "services.loadbalancers": balancers, "pods": pods,
            "count/configmaps": maps})
    };
    wait_for_usage("all", usage("0", "0", "0", "0", "0")).await;
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let service =
        |name: &str, kind: &str| json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}]}});
    create(&services, service("plain", "NodePort")).await;
    wait_for_usage("all", usage("1", "1", "0", "0", "0")).await;
    let balanced = services.create(&PostParams::default(), &object(service("balanced", "LoadBalancer"))).await;
    let refused = balanced.unwrap_err().to_string();
    assert!(refused.contains("exceeded quota: all, requested: services.nodeports=1, used: services.nodeports=1, limited: services.nodeports=1"), "{refused}");
    services.delete("plain", &DeleteParams::default()).await.unwrap();
    wait_for_usage("all", usage("0", "0", "0", "0", "0")).await;

    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut long = pod("long");
    long["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "500m"}});
    let mut short = long.clone();
    short["metadata"]["name"] = "short".into();
    short["spec"]["activeDeadlineSeconds"] = 60.into();
    create(&pods, long.clone()).await;
    create(&pods, short).await;
    create(&maps, json!({"metadata": {"name": "settings"}})).await;
    wait_for_usage("all", usage("0", "0", "0", "2", "1")).await;
    for name in ["long", "short"] {
        wait_for_usage(name, json!({"pods": "1", "requests.cpu": "500m"})).await;
    }
    long["metadata"]["name"] = "another".into();
    let refused = pods.create(&PostParams::default(), &object(long)).await.unwrap_err().to_string();
    assert!(refused.contains("exceeded quota: long, requested: pods=1, used: pods=1, limited: pods=1"), "{refused}");
    let finished = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status("long", &PatchParams::default(), &finished).await.unwrap();
    wait_for_usage("long", json!({"pods": "0", "requests.cpu": "0"})).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn volumes_and_claims_in_use_are_not_deleted() {
    let (server, client) = start(Controllers { storage_protection: true, ..Controllers::default() }).await;
    let (pods, claims) = (
        Api::<Pod>::namespaced(client.clone(), "default"),
        Api::<PersistentVolumeClaim>::namespaced(client.clone(), "default"),
    );
    let volumes: Api<PersistentVolume> = Api::all(client);
    let storage = json!({"storage": "1Gi"});
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": storage}}});
    assert_eq!(create(&claims, claim).await.metadata.finalizers.unwrap(), ["kubernetes.io/pvc-protection"]);
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": storage, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"}}});
    assert_eq!(create(&volumes, volume).await.metadata.finalizers.unwrap(), ["kubernetes.io/pv-protection"]);
    let mut user = pod("user");
    user["spec"]["nodeName"] = "n".into();
    user["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    create(&pods, user).await;
    let phase = |phase: &str| Patch::Merge(json!({"status": {"phase": phase}}));
    volumes.patch_status("v", &PatchParams::default(), &phase("Bound")).await.unwrap();

    claims.delete("data", &DeleteParams::default()).await.unwrap();
    volumes.delete("v", &DeleteParams::default()).await.unwrap();
    let marked = claims.get("data").await.unwrap().metadata;
    assert!(marked.deletion_timestamp.is_some() && marked.finalizers.is_some());
    pods.delete("user", &DeleteParams::default().grace_period(0)).await.unwrap();
    await_condition(claims.clone(), "data", |claim: Option<&PersistentVolumeClaim>| claim.is_none()).await.unwrap();
    assert!(volumes.get("v").await.is_ok());
    volumes.patch_status("v", &PatchParams::default(), &phase("Released")).await.unwrap();
    await_condition(volumes, "v", |volume: Option<&PersistentVolume>| volume.is_none()).await.unwrap();
    server.stop().await.unwrap();
}
