//! Tests of the estimator client against the estimator over TLS with client certificates; the member is a real API
//! server.

use std::net::SocketAddr;
use std::path::Path;

use crowsnest_apiserver::authn::Authority;
use crowsnest_controllers::estimator::client::EstimatorTarget;
use crowsnest_controllers::estimator::{EstimatorOptions, Estimators};
use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crowsnest_kube_apiserver::admission::Plugin;
use crowsnest_kube_apiserver::{ApiServer, Data};
use crowsnest_plan::gates::Gates;
use k8s_openapi::api::core::v1::Service;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// TLS mode of the estimator.
#[derive(Debug, Clone, Copy)]
enum Security {
    Plain,
    ServerOnly,
    Mutual,
}

/// An estimator of a member with two nodes of 4 CPUs, one of them half used, and a Deployment with two unschedulable
/// pods, one of them of the current template.
struct TestEstimator {
    _member: ApiServer,
    address: SocketAddr,
    files: tempfile::TempDir,
    stop: CancellationToken,
}

fn resource(group: &str, name: &str, kind: &str, namespaced: bool) -> Resource {
    Resource::builtin(group, "v1", name, kind, namespaced)
}

/// Creates an object with its status; returns it as stored.
async fn create(member: &DynamicClient, resource: &Resource, object: Value) -> Value {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    let created = member.create(resource, &namespace, &object).await.unwrap();
    let Some(status) = object.get("status") else { return created };
    let name = created["metadata"]["name"].as_str().unwrap_or_default();
    member.merge(Target::new(resource, &namespace, name).status(), &json!({"status": status})).await.unwrap()
}

fn owner(kind: &str, object: &Value) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "controller": true,
        "name": object["metadata"]["name"], "uid": object["metadata"]["uid"]}])
}

fn container(cpu: &str) -> Value {
    json!({"containers": [{"name": "web", "image": "nginx", "resources": {"requests": {"cpu": cpu}}}]})
}

/// Creates the nodes, pods and workloads that [`TestEstimator`] describes.
async fn create_objects(member: &DynamicClient) {
    let (node, pod) = (resource("", "nodes", "Node", false), resource("", "pods", "Pod", true));
    for name in ["n1", "n2"] {
        let status = json!({"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}]});
        create(
            member,
            &node,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}),
        )
        .await;
    }
    let mut running_pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default"},
        "spec": container("2"), "status": {"phase": "Running"}});
    running_pod["spec"]["nodeName"] = json!("n1");
    create(member, &pod, running_pod).await;
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": container("8")});
    let deployment = create(
        member,
        &resource("apps", "deployments", "Deployment", true),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }),
    )
    .await;
    for (name, cpu, since) in [("web-1", "7", "2026-01-01T00:00:00Z"), ("web-2", "8", "2026-01-01T00:00:00Z")] {
        let template =
            json!({"metadata": {"labels": {"app": "web", "pod-template-hash": name}}, "spec": container(cpu)});
        let set = create(
            member,
            &resource("apps", "replicasets", "ReplicaSet", true),
            json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet",
                "metadata": {"name": name, "namespace": "default", "labels": labels,
                    "ownerReferences": owner("Deployment", &deployment)},
                "spec": {"selector": {"matchLabels": {"app": "web", "pod-template-hash": name}}, "template": template},
            }),
        )
        .await;
        create(
            member,
            &pod,
            json!({
                "apiVersion": "v1", "kind": "Pod", "spec": container(cpu),
                "metadata": {"name": name, "namespace": "default", "ownerReferences": owner("ReplicaSet", &set)},
                "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
                    "reason": "Unschedulable", "lastTransitionTime": since}]},
            }),
        )
        .await;
    }
}

impl TestEstimator {
    async fn start(security: Security) -> Self {
        // Another test of this process may have installed the provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut config = crowsnest_kube_apiserver::Config::new("m1", Data::Memory);
        // No kubelet runs that would make the nodes ready, so they must not be tainted as not ready.
        config.requests.disabled_admission_plugins = vec![Plugin::TaintNodesByCondition];
        let member = ApiServer::start(config).await.unwrap();
        create_objects(&DynamicClient::new(member.admin())).await;
        let files = tempfile::tempdir().unwrap();
        for name in ["ours", "theirs"] {
            let authority = Authority::generate(name).unwrap();
            let write =
                |suffix: &str, text: &str| std::fs::write(files.path().join(format!("{name}-{suffix}")), text).unwrap();
            write("ca.crt", authority.certificate());
            let server = authority.issue_serving_certificate(&["127.0.0.1".to_owned()]).unwrap();
            let client = authority.issue_client_certificate("karmada-scheduler", &[]).unwrap();
            for (role, credentials) in [("server", server), ("client", client)] {
                write(&format!("{role}.crt"), &credentials.certificate);
                write(&format!("{role}.key"), &credentials.key);
            }
        }
        let file = |name: &str| files.path().join(name);
        let pair =
            |client_ca| TlsFiles { certificate: file("ours-server.crt"), key: file("ours-server.key"), client_ca };
        let security = match security {
            Security::Plain => None,
            Security::ServerOnly => Some(pair(None)),
            Security::Mutual => Some(pair(Some(file("ours-ca.crt")))),
        };
        let stop = CancellationToken::new();
        let tls = tls(security.as_ref(), &mut Reloader::new(RELOAD_INTERVAL)).await.unwrap();
        let member_cache = MemberCache::new(member.admin(), Gates::default());
        let (cache, stop_token) = (Arc::clone(&member_cache), stop.clone());
        member.spawn("the estimator's member", async move { cache.run(stop_token).await });
        member_cache.wait_until_listed().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = router(Arc::new(Estimator::new("m1".parse().unwrap(), member_cache)));
        let serving = serving::serve_grpc(listener, tls, routes, stop.clone());
        member.spawn("the estimator", serving);
        TestEstimator { _member: member, address, files, stop }
    }

    fn service(&self) -> Service {
        let port = self.address.port();
        let spec = json!({"type": "ExternalName", "externalName": "127.0.0.1",
            "ports": [{"port": 10352, "targetPort": port}]});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    /// Estimator clients that trust the CA named `ca` and present the client certificate named `client`.
    fn clients(&self, ca: Option<&str>, client: Option<&str>) -> Estimators {
        let file = |name: &str| self.files.path().join(name);
        let options = EstimatorOptions {
            ca_file: ca.map(|ca| file(&format!("{ca}-ca.crt"))),
            identity: client.map(|name| (file(&format!("{name}-client.crt")), file(&format!("{name}-client.key")))),
            ..EstimatorOptions::default()
        };
        Estimators::new(options).unwrap()
    }

    async fn replicas(&self, estimators: &Estimators, cluster: &str, cpu: &str) -> Result<i32, String> {
        let requirements: work::ReplicaRequirements =
            serde_json::from_value(json!({"resourceRequest": {"cpu": cpu}, "namespace": "default"})).unwrap();
        let request = wire::MaxAvailableReplicasRequest {
            cluster: cluster.to_owned(),
            replica_requirements: Some(wire::ReplicaRequirements::from(&requirements)),
            assumed_workloads: Vec::new(),
        };
        let service = self.service();
        let target =
            EstimatorTarget { cluster: "m1", service: Some(&service), object: "kind=Deployment, name=default/web" };
        let response = estimators.call(target, request).await.map_err(|error| error.to_string())?;
        Ok(response.max_replicas)
    }
}

impl Drop for TestEstimator {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn estimates_are_returned() {
    let estimator = TestEstimator::start(Security::Mutual).await;
    let estimators = estimator.clients(Some("ours"), Some("ours"));
    // The first node has two CPUs left, the second four.
    assert_eq!(estimator.replicas(&estimators, "m1", "1").await, Ok(6));
    assert_eq!(estimator.replicas(&estimators, "m1", "3").await, Ok(1));
    assert_eq!(estimator.replicas(&estimators, "m1", "9").await, Ok(0));
    let error = estimator.replicas(&estimators, "m2", "1").await.unwrap_err();
    assert_eq!(
        error,
        "gRPC request cluster(m1) estimator error when calling MaxAvailableReplicas: \
         cluster name does not match, got: m2, desire: m1"
    );

    let service = estimator.service();
    let target =
        EstimatorTarget { cluster: "m1", service: Some(&service), object: "kind=FlinkDeployment, name=default/f" };
    let component = |cpu: &str, replicas: i32| -> wire::Component {
        let component = json!({"name": "c", "replicas": replicas,
            "replicaRequirements": {"resourceRequest": {"cpu": cpu}}});
        wire::Component::from(&serde_json::from_value::<work::Component>(component).unwrap())
    };
    let request = |assumed_workloads| wire::MaxAvailableComponentSetsRequest {
        cluster: "m1".to_owned(),
        components: vec![component("1", 2)],
        namespace: "default".to_owned(),
        assumed_workloads,
    };
    assert_eq!(estimators.call(target, request(Vec::new())).await.unwrap().max_sets, 3);
    let assumed = wire::AssumedWorkload { namespace: "other".to_owned(), components: vec![component("1", 3)] };
    assert_eq!(estimators.call(target, request(vec![assumed])).await.unwrap().max_sets, 1);

    let unschedulable = |kind: &str, name: &str, threshold: i64| wire::UnschedulableReplicasRequest {
        cluster: "m1".to_owned(),
        resource: Some(wire::ObjectReference {
            api_version: "apps/v1".to_owned(),
            kind: kind.to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
        }),
        unschedulable_threshold: threshold,
    };
    let count = async |request: wire::UnschedulableReplicasRequest| {
        let response = estimators.call(target, request).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(response.unschedulable_replicas)
    };
    assert_eq!(count(unschedulable("Deployment", "web", 0)).await, Ok(1), "pods of the previous template do not count");
    assert_eq!(count(unschedulable("Deployment", "web", i64::MAX)).await, Ok(0));
    let error = count(unschedulable("StatefulSet", "web", 0)).await.unwrap_err();
    assert!(error.ends_with("kind(StatefulSet) of workload(default/web) is not supported"), "{error}");
    let error = count(unschedulable("Deployment", "none", 0)).await.unwrap_err();
    assert!(error.ends_with("deployments.apps \"none\" not found"), "{error}");
    let without_resource = wire::UnschedulableReplicasRequest { resource: None, ..unschedulable("", "", 0) };
    assert!(count(without_resource).await.unwrap_err().ends_with("resource is nil"));
}

#[rstest]
#[case::trusted_client(Security::Mutual, Some("ours"), Some("ours"), true)]
#[case::client_without_certificate(Security::Mutual, Some("ours"), None, false)]
#[case::client_certificate_of_another_ca(Security::Mutual, Some("ours"), Some("theirs"), false)]
#[case::client_trusts_another_ca(Security::Mutual, Some("theirs"), Some("ours"), false)]
#[case::client_in_plain_text(Security::Mutual, None, None, false)]
#[case::clients_need_no_certificate(Security::ServerOnly, Some("ours"), None, true)]
#[case::both_in_plain_text(Security::Plain, None, None, true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_verified(
    #[case] security: Security,
    #[case] ca: Option<&str>,
    #[case] client: Option<&str>,
    #[case] expected: bool,
) {
    let estimator = TestEstimator::start(security).await;
    let result = estimator.replicas(&estimator.clients(ca, client), "m1", "1").await;
    assert_eq!(result.as_ref().ok(), expected.then_some(&6), "{result:?}");
}

/// Returns true if a handshake with this TLS version succeeds.
async fn handshake_succeeds(
    estimator: &TestEstimator,
    version: &'static rustls::SupportedProtocolVersion,
    files: &Path,
) -> bool {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.join("ours-ca.crt")).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(files.join("ours-client.crt")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(files.join("ours-client.key")).unwrap();
    let builder = rustls::ClientConfig::builder_with_protocol_versions(&[version]).with_root_certificates(roots);
    let mut config = builder.with_client_auth_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = tokio::net::TcpStream::connect(estimator.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_tls_versions_are_rejected() {
    let estimator = TestEstimator::start(Security::Mutual).await;
    assert!(handshake_succeeds(&estimator, &rustls::version::TLS13, estimator.files.path()).await);
    assert!(!handshake_succeeds(&estimator, &rustls::version::TLS12, estimator.files.path()).await);
}

#[test]
fn metrics_match_karmada() {
    let metrics = EstimatorMetrics::new();
    metrics.record("MaxAvailableReplicas", Instant::now(), true);
    let mut text = String::new();
    encode(&mut text, &metrics.registry).unwrap();
    let expected =
        "karmada_scheduler_estimator_estimating_request_total{result=\"success\",type=\"MaxAvailableReplicas\"} 1";
    assert!(text.contains(expected), "{text}");
    let duration = "karmada_scheduler_estimator_estimating_algorithm_duration_seconds_count";
    assert!(
        text.contains(&format!("{duration}{{result=\"success\",type=\"MaxAvailableReplicas\",step=\"Total\"}} 1")),
        "{text}"
    );
}
