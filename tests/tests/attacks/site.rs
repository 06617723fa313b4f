//! System under test: one `crowsnest up` with the member m1, the member m2 behind an agent, a recorder in front of
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
use crowsnest_tests::{Fleet, Member, PATIENCE, Process, binary};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::attacks::callers::{self, Certificate, Proofs};
use crate::attacks::recorder::Recorder;
use crate::attacks::table::{Case, Door, Places, subprotocol};
use crate::attacks::verdict::{CANARY, Facts};
use crate::attacks::wire::Wire;

const CONTROL_PLANE: &str = include_str!("control-plane.yaml");
const MEMBER: &str = include_str!("member.yaml");
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
const SECRETS: &str = "/api/v1/namespaces/karmada-cluster/secrets";

/// See the module.
pub struct Site {
    pub fleet: Fleet,
    pub places: Arc<Places>,
    pub facts: Facts,
    pub recorders: Vec<Arc<Recorder>>,
    pub control_plane: Client,
    certificates: BTreeMap<String, Certificate>,
    authority: Vec<u8>,
    agent: Process,
    _m2: Member,
}

/// Address and certificate authority of a kubeconfig's server.
fn server(file: &Path) -> Result<(SocketAddr, Vec<u8>)> {
    let config = Kubeconfig::read_from(file)?;
    let cluster = config.clusters.first().and_then(|named| named.cluster.as_ref()).context("a cluster")?;
    let address = cluster.server.as_deref().context("a server")?.trim_start_matches("https://").parse()?;
    Ok((address, STANDARD.decode(cluster.certificate_authority_data.as_deref().context("an authority")?)?))
}

/// Client with the user of a kubeconfig.
async fn client(file: &Path) -> Result<Client> {
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
pub async fn until(client: &Client, path: &str, ready: impl Fn(&Value) -> bool) -> Result<Value> {
    let began = std::time::Instant::now();
    loop {
        let last = match send(client, "GET", path, &Value::Null).await {
            Ok(found) if ready(&found) => return Ok(found),
            last => last,
        };
        ensure!(began.elapsed() < PATIENCE, "waited for {path}: {last:?}");
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

impl Site {
    pub async fn start(folder: &Path) -> Result<Self> {
        let (data, other) = (folder.join("up"), folder.join("m2"));
        let m2 = tokio::task::spawn_blocking(move || Member::start("m2", &other, &[]));
        let fleet = tokio::task::spawn_blocking(move || Fleet::start(&data, &["--members", "m1"])).await??;
        let m2 = m2.await??;
        let control_plane = client(&fleet.kubeconfig("cp")).await?;
        let (behind, authority) = server(&fleet.kubeconfig("m1"))?;
        let first = Recorder::start("m1", behind, &authority, true).await?;
        let (behind, authority) = server(&m2.kubeconfig)?;
        let second = Recorder::start("m2", behind, &authority, false).await?;
        create(&client(&fleet.kubeconfig("m1")).await?, MEMBER).await?;
        create(&control_plane, CONTROL_PLANE).await?;
        insert_recorder(&control_plane, &first).await?;
        let agent = agent(folder, &fleet, &m2, &second).await?;

        let (address, authority) = server(&fleet.kubeconfig("cp"))?;
        let ui = fleet.ui_url.trim_start_matches("http://").split(['/', '#']).next().unwrap_or_default().parse()?;
        let service = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.cluster.karmada.io";
        let service = send(&control_plane, "GET", service, &Value::Null).await?;
        let port = service["spec"]["service"]["port"].as_u64().context("a port")? as u16;
        let doors = [("control-plane", address), ("aggregated", ([127, 0, 0, 1], port).into()), ("ui", ui)];
        let Proofs { identities, certificates, tokens } = callers::admit(&control_plane).await?;
        let cookies = callers::sign_in(ui, &certificates, &tokens).await?;
        let mut facts = Facts { callers: identities, ..Facts::default() };
        for (caller, token) in &tokens {
            facts.credentials.extend([token.clone(), subprotocol(token), cookies[caller].clone()]);
        }
        // Value of a cookie, without its attributes.
        let value = |cookie: &String| cookie.split_once('=').map(|(_, value)| value.to_owned());
        facts.credentials.extend(cookies.values().filter_map(value));
        for recorder in ["m1", "m2"] {
            let path = format!("{SECRETS}/{recorder}-impersonator");
            let secret = until(&control_plane, &path, |secret| secret["data"]["token"].is_string()).await?;
            let token = STANDARD.decode(secret["data"]["token"].as_str().context("a token")?)?;
            facts.impersonators.insert(recorder, String::from_utf8(token)?);
        }
        let members = [("m1", first.address.to_string()), ("m2", "kubernetes.default.svc".to_owned())];
        let places = Places { doors: doors.into(), tokens, cookies, members: members.into() };
        let site = Self {
            fleet,
            places: Arc::new(places),
            facts,
            recorders: vec![first, second],
            control_plane,
            certificates,
            authority,
            agent,
            _m2: m2,
        };
        site.wait_until_ready().await.with_context(|| site.fleet.log())?;
        Ok(site)
    }

    /// Waits until both members are ready behind their recorders and the registered resources are cached.
    async fn wait_until_ready(&self) -> Result<()> {
        for member in ["m1", "m2"] {
            let ready = |cluster: &Value| {
                let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
            };
            until(&self.control_plane, &format!("{CLUSTERS}/{member}"), ready).await?;
            let version = |found: &Value| found["gitVersion"].is_string();
            until(&self.control_plane, &format!("{CLUSTERS}/{member}/proxy/version"), version).await?;
        }
        let cache = "/apis/search.karmada.io/v1alpha1/search/cache/api/v1/namespaces/default/configmaps/cached";
        let kept = |found: &Value| found["items"].as_array().is_some_and(|items| items.len() == 1);
        until(&self.control_plane, cache, kept).await?;
        let is_recorded = self.recorders.iter().all(|recorder| !recorder.requests().is_empty());
        ensure!(is_recorded, "a member is reached past its recorder");
        Ok(())
    }

    /// Connects as the caller of a case.
    pub async fn connect(&self, case: &Case) -> Result<Wire> {
        let stream = TcpStream::connect(case.address()).await?;
        stream.set_nodelay(true)?;
        if case.listener.door == Door::Ui {
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

    /// Stops the processes under test and waits until they have sent all that they send to members.
    pub async fn stop(&self) -> Result<()> {
        self.agent.signal("TERM")?;
        self.fleet.signal("TERM")?;
        for recorder in &self.recorders {
            recorder.wait_for_connections().await?;
        }
        Ok(())
    }

    /// Objects of the table in the control plane, of kinds that no caller may write.
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

/// Makes the control plane connect to the member through its recorder.
async fn insert_recorder(control_plane: &Client, recorder: &Recorder) -> Result<()> {
    let (name, authority) = (recorder.name, STANDARD.encode(&recorder.authority));
    let ca = json!({"data": {"caBundle": authority}});
    send(control_plane, "PATCH", &format!("{SECRETS}/{name}"), &ca).await?;
    let endpoint = json!({"spec": {"apiEndpoint": format!("https://{}", recorder.address)}});
    send(control_plane, "PATCH", &format!("{CLUSTERS}/{name}"), &endpoint).await?;
    Ok(())
}

/// Agent of a member, connected to it through the recorder. Uses a token, because a client certificate would end at the
/// recorder.
async fn agent(folder: &Path, fleet: &Fleet, member: &Member, recorder: &Recorder) -> Result<Process> {
    let there = client(&member.kubeconfig).await?;
    let account = json!({"metadata": {"name": "agent", "namespace": "kube-system"}});
    send(&there, "POST", "/api/v1/namespaces/kube-system/serviceaccounts", &account).await?;
    let binding = json!({"metadata": {"name": "agent"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": "kube-system"}]});
    send(&there, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
    let token = "/api/v1/namespaces/kube-system/serviceaccounts/agent/token";
    let token = send(&there, "POST", token, &json!({"spec": {"expirationSeconds": 3600}})).await?;
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

/// True if the value that no response may contain is the stored one.
pub fn canary_is_stored() -> bool {
    CONTROL_PLANE.contains(&STANDARD.encode(CANARY))
}
