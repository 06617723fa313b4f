//! The system under test: one `crowsnest up` with the member m1, the member m2 behind an agent, a recorder in front of
//! each, and the callers with their credentials.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Fleet, Member, Process, WAIT_TIMEOUT, binary};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::attacks::callers::{self, Certificate, Credentials};
use crate::attacks::evaluation::{CANARY, Identities};
use crate::attacks::recorder::Recorder;
use crate::attacks::table::{Case, Endpoint, RuntimeValues, subprotocol};
use crate::attacks::wire::Wire;

const CONTROL_PLANE: &str = include_str!("control-plane.yaml");
const MEMBER: &str = include_str!("member.yaml");
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
const SECRETS: &str = "/api/v1/namespaces/karmada-cluster/secrets";

/// The running system. See the module.
pub struct TestEnv {
    pub fleet: Fleet,
    pub runtime_values: Arc<RuntimeValues>,
    pub identities: Identities,
    pub recorders: Vec<Arc<Recorder>>,
    pub control_plane: Client,
    certificates: BTreeMap<String, Certificate>,
    authority: Vec<u8>,
    agent: Process,
    _m2: Member,
}

/// Address and certificate authority of a kubeconfig's server.
fn read_server(file: &Path) -> Result<(SocketAddr, Vec<u8>)> {
    let config = Kubeconfig::read_from(file)?;
    let cluster =
        config.clusters.first().and_then(|named| named.cluster.as_ref()).context("the kubeconfig has no cluster")?;
    let address =
        cluster.server.as_deref().context("the kubeconfig has no server")?.trim_start_matches("https://").parse()?;
    Ok((
        address,
        STANDARD.decode(
            cluster.certificate_authority_data.as_deref().context("the kubeconfig has no certificate authority")?,
        )?,
    ))
}

/// Client with the user of a kubeconfig.
async fn connect_client(file: &Path) -> Result<Client> {
    let config = Kubeconfig::read_from(file)?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Sends one request, which must succeed.
pub async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Result<Value> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
    let request = http::Request::builder().method(method).uri(path).header("content-type", kind).body(body)?;
    client.request(request).await.with_context(|| format!("{method} {path}"))
}

/// Polls an object until it is ready.
pub async fn wait_until(client: &Client, path: &str, ready: impl Fn(&Value) -> bool) -> Result<Value> {
    let started_at = std::time::Instant::now();
    loop {
        let last = match send(client, "GET", path, &Value::Null).await {
            Ok(found) if ready(&found) => return Ok(found),
            last => last,
        };
        ensure!(started_at.elapsed() < WAIT_TIMEOUT, "timed out waiting for {path}: {last:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Creates the objects of a file.
async fn create(client: &Client, text: &str) -> Result<()> {
    for object in serde_saphyr::from_multiple::<Value>(text)? {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("/apiVersion"), text("/kind").to_ascii_lowercase());
        let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
        let plural =
            if kind.ends_with('y') { format!("{}ies", kind.trim_end_matches('y')) } else { format!("{kind}s") };
        let path = match text("/metadata/namespace") {
            "" => format!("{root}/{plural}"),
            namespace => format!("{root}/namespaces/{namespace}/{plural}"),
        };
        send(client, "POST", &path, &object).await?;
    }
    Ok(())
}

impl TestEnv {
    pub async fn start(folder: &Path) -> Result<Self> {
        let (data, m2_data) = (folder.join("up"), folder.join("m2"));
        let m2 = tokio::task::spawn_blocking(move || Member::start("m2", &m2_data, &[]));
        let fleet = tokio::task::spawn_blocking(move || Fleet::start(&data, &["--members", "m1"])).await??;
        let m2 = m2.await??;
        let control_plane = connect_client(&fleet.kubeconfig("cp")).await?;
        let (upstream, authority) = read_server(&fleet.kubeconfig("m1"))?;
        let first = Recorder::start("m1", upstream, &authority, true).await?;
        let (upstream, authority) = read_server(&m2.kubeconfig)?;
        let second = Recorder::start("m2", upstream, &authority, false).await?;
        create(&connect_client(&fleet.kubeconfig("m1")).await?, MEMBER).await?;
        create(&control_plane, CONTROL_PLANE).await?;
        redirect_to_recorder(&control_plane, &first).await?;
        let agent = start_agent(folder, &fleet, &m2, &second).await?;

        let (address, authority) = read_server(&fleet.kubeconfig("cp"))?;
        let ui = fleet.ui_url.trim_start_matches("http://").split(['/', '#']).next().unwrap_or_default().parse()?;
        let service = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.cluster.karmada.io";
        let service = send(&control_plane, "GET", service, &Value::Null).await?;
        let port = service["spec"]["service"]["port"].as_u64().context("the APIService has no port")? as u16;
        let endpoints = [("control-plane", address), ("aggregated", ([127, 0, 0, 1], port).into()), ("ui", ui)];
        let Credentials { identities, certificates, tokens } = callers::create_callers(&control_plane).await?;
        let cookies = callers::sign_in(ui, &certificates, &tokens).await?;
        let mut identities = Identities { callers: identities, ..Identities::default() };
        for (caller, token) in &tokens {
            identities.credentials.extend([token.clone(), subprotocol(token), cookies[caller].clone()]);
        }
        // Value of a cookie, without its attributes.
        let value = |cookie: &String| cookie.split_once('=').map(|(_, value)| value.to_owned());
        identities.credentials.extend(cookies.values().filter_map(value));
        for member in ["m1", "m2"] {
            let path = format!("{SECRETS}/{member}-impersonator");
            let secret = wait_until(&control_plane, &path, |secret| secret["data"]["token"].is_string()).await?;
            let token = STANDARD.decode(secret["data"]["token"].as_str().context("the response has no token")?)?;
            identities.impersonators.insert(member, String::from_utf8(token)?);
        }
        let members = [("m1", first.address.to_string()), ("m2", "kubernetes.default.svc".to_owned())];
        let runtime_values = RuntimeValues { endpoints: endpoints.into(), tokens, cookies, members: members.into() };
        let env = Self {
            fleet,
            runtime_values: Arc::new(runtime_values),
            identities,
            recorders: vec![first, second],
            control_plane,
            certificates,
            authority,
            agent,
            _m2: m2,
        };
        env.wait_until_ready().await.with_context(|| env.fleet.log())?;
        Ok(env)
    }

    /// Waits until both members are ready behind their recorders and the registered resources are cached.
    async fn wait_until_ready(&self) -> Result<()> {
        for member in ["m1", "m2"] {
            let is_ready = |cluster: &Value| {
                let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
            };
            wait_until(&self.control_plane, &format!("{CLUSTERS}/{member}"), is_ready).await?;
            let has_version = |found: &Value| found["gitVersion"].is_string();
            wait_until(&self.control_plane, &format!("{CLUSTERS}/{member}/proxy/version"), has_version).await?;
        }
        let cache = "/apis/search.karmada.io/v1alpha1/search/cache/api/v1/namespaces/default/configmaps/cached";
        let is_cached = |found: &Value| found["items"].as_array().is_some_and(|items| items.len() == 1);
        wait_until(&self.control_plane, cache, is_cached).await?;
        let is_recorded = self.recorders.iter().all(|recorder| !recorder.requests().is_empty());
        ensure!(is_recorded, "a member received no request through its recorder");
        Ok(())
    }

    /// Connects as the caller of a case.
    pub async fn connect(&self, case: &Case) -> Result<Wire> {
        let stream = TcpStream::connect(case.address()).await?;
        stream.set_nodelay(true)?;
        if case.listener.endpoint == Endpoint::Ui {
            return Ok(Wire::new(stream));
        }
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&self.authority) {
            roots.add(certificate?)?;
        }
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match self.certificates.get(&case.row.caller).filter(|_| !case.row.bare) {
            Some(own) => {
                let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes())?];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(own.key.as_bytes())?)?
            }
            None => builder.with_no_client_auth(),
        };
        let protocol: &[u8] = if case.version == 2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::IpAddress(case.address().ip().into());
        Ok(Wire::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
    }

    /// Stops the processes under test and waits until their connections to members have ended.
    pub async fn stop(&self) -> Result<()> {
        self.agent.signal("TERM")?;
        self.fleet.signal("TERM")?;
        for recorder in &self.recorders {
            recorder.wait_for_connections().await?;
        }
        Ok(())
    }

    /// Objects in the control plane whose names or values contain the mark, of kinds that no caller may write.
    pub async fn leftover_objects(&self, mark: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for path in [CLUSTERS, "/api/v1/configmaps", "/api/v1/secrets", "/api/v1/services", "/api/v1/namespaces"] {
            let listed = send(&self.control_plane, "GET", path, &Value::Null).await?.to_string();
            found.extend(listed.match_indices(mark).map(|(at, _)| {
                let end = listed.len().min(at + mark.len() + 4);
                format!("{} in {path}", &listed[at..end])
            }));
        }
        Ok(found)
    }
}

/// Changes the member's Cluster so that the control plane connects to it through its recorder.
async fn redirect_to_recorder(control_plane: &Client, recorder: &Recorder) -> Result<()> {
    let (name, authority) = (recorder.name, STANDARD.encode(&recorder.authority));
    let ca = json!({"data": {"caBundle": authority}});
    send(control_plane, "PATCH", &format!("{SECRETS}/{name}"), &ca).await?;
    let endpoint = json!({"spec": {"apiEndpoint": format!("https://{}", recorder.address)}});
    send(control_plane, "PATCH", &format!("{CLUSTERS}/{name}"), &endpoint).await?;
    Ok(())
}

/// Starts the agent of a member, which connects to the member through the recorder. It authenticates with a token,
/// because the recorder terminates TLS and cannot pass on a client certificate.
async fn start_agent(folder: &Path, fleet: &Fleet, member: &Member, recorder: &Recorder) -> Result<Process> {
    let member_client = connect_client(&member.kubeconfig).await?;
    let account = json!({"metadata": {"name": "agent", "namespace": "kube-system"}});
    send(&member_client, "POST", "/api/v1/namespaces/kube-system/serviceaccounts", &account).await?;
    let binding = json!({"metadata": {"name": "agent"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": "kube-system"}]});
    send(&member_client, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
    let token = "/api/v1/namespaces/kube-system/serviceaccounts/agent/token";
    let token = send(&member_client, "POST", token, &json!({"spec": {"expirationSeconds": 3600}})).await?;
    let token = &token["status"]["token"];
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "m2",
        "clusters": [{"name": "m2", "cluster": {"server": format!("https://{}", recorder.address),
            "certificate-authority-data": STANDARD.encode(&recorder.authority)}}],
        "users": [{"name": "m2", "user": {"token": token}}],
        "contexts": [{"name": "m2", "context": {"cluster": "m2", "user": "m2"}}]});
    let file = folder.join("agent.kubeconfig");
    fs::write(&file, config.to_string())?;
    let mut command = Command::new(binary()?);
    command.args(["-v", "agent", "--cluster-name", "m2", "--karmada-kubeconfig"]).arg(fleet.kubeconfig("cp"));
    command.args(["--cluster-api-endpoint", "https://kubernetes.default.svc", "--kubeconfig"]).arg(file);
    command.stdout(Stdio::null()).stderr(File::create(folder.join("agent.log"))?);
    Ok(Process::spawn(&mut command)?)
}

/// True if the control plane's Secret contains the value that no response may contain.
pub fn is_canary_stored() -> bool {
    CONTROL_PLANE.contains(&STANDARD.encode(CANARY))
}
