//! `crowsnest mcp` and `/mcp` with a fleet of two members: both protocol revisions, permissions of the caller, origins,
//! limits, and the client configurations in the documentation; and an evaluation with recorded questions.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;
use crowsnest_tests::{Fleet, Kubectl, binary, run_shell_blocks, wait_for};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

mod evaluation;

const SHOP: &str = include_str!("mcp/shop.yaml");
const PROPAGATED: &str = include_str!("mcp/propagated.yaml");
const DOCUMENTATION: &str = include_str!("../../docs/MCP.md");
const MCP_PATH: &str = "/apis/search.crowsnest.io/v1alpha1/mcp";
/// Number of concurrent messages in an attempt to exceed the rate limit.
const PINGS: u32 = 100;
/// Maximum number of attempts. On a busy machine, messages can be so slow that all of them are permitted.
const MAX_ROUNDS: usize = 10;

/// A running `crowsnest mcp`.
struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    id: u64,
}

impl Session {
    /// Starts `crowsnest` with the arguments of a client configuration.
    fn start(fleet: &Fleet, args: &[&str]) -> Result<Self> {
        let mut child = Command::new(binary()?)
            .args(args)
            .env("KUBECONFIG", fleet.kubeconfig("cp"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("no standard input")?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, input, output, id: 0 })
    }

    /// Sends a request and returns the whole response.
    fn request(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.id += 1;
        writeln!(self.input, "{}", message(self.id, method, params))?;
        self.input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let response: Value = serde_json::from_str(&line).with_context(|| format!("{method} returned {line:?}"))?;
        ensure!(response["id"] == self.id, "{response}");
        Ok(response)
    }

    /// Calls a tool; returns the text of its result, and true if it is an error.
    fn call(&mut self, tool: &str, arguments: &Value) -> Result<(String, bool)> {
        tool_result(&self.request("tools/call", &json!({"name": tool, "arguments": arguments}))?)
    }

    /// Closes standard input and waits; the process must exit with code 0.
    fn close(mut self) -> Result<()> {
        drop(self.input);
        ensure!(self.child.wait()?.success());
        Ok(())
    }
}

fn message(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// Text of the result of a tool, and true if it is an error.
fn tool_result(response: &Value) -> Result<(String, bool)> {
    let result = &response["result"];
    let text = result["content"][0]["text"].as_str().with_context(|| response.to_string())?;
    Ok((text.to_owned(), result["isError"] == true))
}

#[test]
fn assistants_read_the_fleet() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.with_kubeconfig(&fleet.kubeconfig("member1")).run_ok(&["apply", "-f", "-"], SHOP)?;
    kubectl.run_ok(&["apply", "-f", "-"], PROPAGATED)?;
    let checks = || -> Result<()> {
        check_tools(&fleet)?;
        check_documented_configurations(&fleet)?;
        check_documented_message(&kubectl)?;
        check_permissions(&fleet, &kubectl)?;
        check_http(&fleet)?;
        Ok(())
    };
    checks().with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Calls each tool over standard input and output, with the protocol revision that requires `initialize`.
fn check_tools(fleet: &Fleet) -> Result<()> {
    let mut session = Session::start(fleet, &["mcp"])?;
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
    let initialized = session.request("initialize", &params)?;
    ensure!(initialized["result"]["protocolVersion"] == "2025-11-25", "{initialized}");
    wait_for("the pods to be found", || {
        let (text, _) = session.call("search", &json!({"query": "kind:pod ns:shop status:Running"}))?;
        Ok(text.contains("\ntotal\t2\n"))
    })?;
    let deployment = json!({"cluster": "member1", "kind": "deployment", "namespace": "shop", "name": "checkout"});
    let propagated = json!({"kind": "deploy", "namespace": "fleet", "name": "web"});
    wait_for("the placement to be explained", || {
        Ok(session.call("explain", &propagated)?.0.contains("target\tmember1\t"))
    })?;
    let plan = json!({"delete": [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "fleet", "name": "web"}}]});
    let cases: [(&str, Value, &[&str]); 9] = [
        ("search", json!({"query": "kind:pod ns:shop", "group": "cluster"}), &["cluster\tcount\nmember1\t2"]),
        (
            "get",
            deployment.clone(),
            &["object\tmember1\tapps/v1 Deployment\tshop/checkout", "ghcr.io/acme/checkout:1.27"],
        ),
        (
            "get",
            json!({"cluster": "member1", "kind": "secret", "namespace": "shop", "name": "db", "view": "manifest"}),
            &["\n.data.password\t"],
        ),
        ("history", deployment.clone(), &["since\tgeneration\tpath\tbefore\tafter"]),
        ("related", deployment, &["ConfigMap shop/settings", "owner"]),
        (
            "logs",
            json!({"query": "kind:pod ns:shop", "tail": 3}),
            &["cluster\tpod\tcontainer\ttime\ttext", "member1\tshop/checkout-"],
        ),
        ("explain", propagated, &["policy\tPropagationPolicy fleet/web", "target\tmember1\t"]),
        ("plan", plan, &["object\tDeployment fleet/web\tRemoved"]),
        (
            "who_can",
            json!({"verb": "get", "resource": "secrets", "namespace": "shop", "clusters": ["member1"]}),
            &["member1\tUser ann\tshop\tRoleBinding shop/reader\tRole shop/reader\tget,list "],
        ),
    ];
    for (tool, arguments, expected) in cases {
        let (text, is_error) = session.call(tool, &arguments)?;
        ensure!(!is_error, "{tool} {arguments}: {text}");
        for expected in expected {
            ensure!(text.contains(expected), "{tool} {arguments}: {expected:?} is not in {text}");
        }
        ensure!(!text.contains("c3dvcmRmaXNo") && !text.contains("swordfish"), "{tool} returns a Secret value: {text}");
    }
    let (text, is_error) = session.call("search", &json!({"query": "nosuchfield:nosuchvalue"}))?;
    ensure!(is_error && text.contains("unknown field \"nosuchfield\", searched as text"), "{text}");
    session.close()
}

/// The client configurations in the documentation start a server that supports both protocol revisions.
fn check_documented_configurations(fleet: &Fleet) -> Result<()> {
    let mut started = 0;
    for block in DOCUMENTATION.split("```json\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        let configuration: Value = serde_json::from_str(block).with_context(|| block.to_owned())?;
        let servers = configuration.get("mcpServers").or(configuration.get("servers")).context("no servers")?;
        let server = servers["crowsnest"].clone();
        let Some(args) = server["args"].as_array() else { continue };
        ensure!(server["command"] == "crowsnest", "{server}");
        let args: Vec<&str> = args.iter().filter_map(Value::as_str).collect();
        let mut session = Session::start(fleet, &args)?;
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
        let discovered = session.request("server/discover", &json!({"_meta": meta}))?;
        ensure!(discovered["result"]["supportedVersions"][0] == "2026-07-28", "{discovered}");
        let initialized = session.request("initialize", &json!({"protocolVersion": "2025-06-18"}))?;
        ensure!(initialized["result"]["protocolVersion"] == "2025-06-18", "{initialized}");
        session.close()?;
        started += 1;
    }
    ensure!(started == 3, "{started} documented configurations start a server");
    Ok(())
}

/// The message in the documentation returns the list of tools.
fn check_documented_message(kubectl: &Kubectl) -> Result<()> {
    let outputs = run_shell_blocks(DOCUMENTATION, kubectl)?;
    ensure!(outputs.len() == 1 && outputs[0].contains("\"who_can\""), "{outputs:?}");
    Ok(())
}

/// Users whose requests alternate on one connection receive equal lists of tools, and never each other's objects.
async fn check_alternating_users(fleet: &Fleet) -> Result<()> {
    let client = crate::crash::write::client(&fleet.kubeconfig("cp"), None).await?;
    let send = async |user: &str, method: &str, params: &Value| -> Result<String> {
        let request = http::Request::post(MCP_PATH).header("Content-Type", "application/json");
        let request = request.header("Impersonate-User", user).header("Impersonate-Group", "system:authenticated");
        Ok(client.request_text(request.body(message(1, method, params).to_string().into_bytes())?).await?)
    };
    let everything = json!({"name": "search", "arguments": {"query": "ns:shop", "limit": 100}});
    for _ in 0..3 {
        let ann = send("ann", "tools/call", &everything).await?;
        let bob = send("bob", "tools/call", &everything).await?;
        let ((ann, _), (bob, _)) =
            (tool_result(&serde_json::from_str(&ann)?)?, tool_result(&serde_json::from_str(&bob)?)?);
        ensure!(ann.contains("\tSecret\tshop\tdb") && !ann.contains("ConfigMap"), "{ann}");
        ensure!(bob.contains("\tConfigMap\tshop\tsettings") && !bob.contains("Secret"), "{bob}");
        let tools = (send("ann", "tools/list", &json!({})).await?, send("bob", "tools/list", &json!({})).await?);
        ensure!(tools.0 == tools.1, "{tools:?}");
    }
    Ok(())
}

/// Users receive only the objects that they may read.
fn check_permissions(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    crate::use_ring();
    let call = |user: &str, tool: &str, arguments: &Value| {
        let body = message(1, "tools/call", &json!({"name": tool, "arguments": arguments})).to_string();
        let as_user = kubectl.with_flags(&["--as", user, "--as-group", "system:authenticated"]);
        let out = as_user.run_ok(&["create", "--raw", MCP_PATH, "-f", "-"], &body)?;
        tool_result(&serde_json::from_str(&out)?)
    };
    Runtime::new()?.block_on(check_alternating_users(fleet))?;
    let secret = json!({"kind": "secret", "namespace": "shop", "name": "db"});
    let (bob, is_error) = call("bob", "get", &secret)?;
    ensure!(is_error && bob.contains("not found in any cluster, or you cannot read it there"), "{bob}");
    let (ann, is_error) = call("ann", "get", &secret)?;
    ensure!(!is_error && ann.contains(".data keys\tpassword"), "{ann}");
    let (bob, is_error) = call("bob", "explain", &json!({"kind": "deploy", "namespace": "fleet", "name": "web"}))?;
    ensure!(is_error, "{bob}");
    let mut session = Session::start(fleet, &["mcp", "--as", "ann", "--as-group", "system:authenticated"])?;
    let (ann, _) = session.call("search", &json!({"query": "ns:shop", "limit": 100}))?;
    ensure!(ann.contains("\tSecret\tshop\tdb") && !ann.contains("ConfigMap"), "{ann}");
    session.close()
}

/// `/mcp` on the UI's address: tokens, origins, methods, limits of size and rate.
fn check_http(fleet: &Fleet) -> Result<()> {
    crate::use_ring();
    let (ui, token) = fleet.ui_url.split_once("/#token=").context("the UI's address has no token")?;
    let (url, bearer) = (format!("{ui}/mcp"), format!("Bearer {token}"));
    Runtime::new()?.block_on(async {
        // The server closes idle connections, which would interrupt a request that is sent at that moment.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
        let post = |headers: &[(&str, &str)], body: String| {
            let request = client.post(&url).header("content-type", "application/json").body(body);
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send()
        };
        let list = message(1, "tools/list", &json!({})).to_string();
        let authorized = ("authorization", bearer.as_str());
        let response: Value = serde_json::from_str(&post(&[authorized], list.clone()).await?.text().await?)?;
        ensure!(response["result"]["tools"].as_array().map(Vec::len) == Some(8), "{response}");
        let mut session = Session::start(fleet, &["mcp"])?;
        let search = json!({"name": "search", "arguments": {"query": "ns:shop kind:deployment,configmap"}});
        for (method, params) in
            [("tools/list", json!({})), ("tools/call", search), ("tools/call", json!({"name": "x"}))]
        {
            let mut expected = session.request(method, &params)?;
            let sent = post(&[authorized], message(1, method, &params).to_string()).await?;
            let received: Value = serde_json::from_str(&sent.text().await?)?;
            expected["id"] = 1.into();
            ensure!(received == expected, "HTTP returned {received}, standard output {expected}");
        }
        session.close()?;
        let cases: [(&[(&str, &str)], String, u16); 5] = [
            (&[], list.clone(), 401),
            (&[("cookie", "crowsnest-session=x")], list.clone(), 401),
            (&[authorized, ("origin", "https://evil.example")], list.clone(), 403),
            (&[authorized, ("mcp-protocol-version", "2026-07-28")], list.clone(), 400),
            (&[authorized], "x".repeat(2 * MAX_REQUEST_BODY_BYTES), 413),
        ];
        for (headers, body, expected) in cases {
            let status = post(headers, body).await?.status();
            ensure!(status == expected, "{headers:?}: status {status}, expected {expected}");
        }
        for method in [reqwest::Method::GET, reqwest::Method::DELETE] {
            let response = client.request(method, &url).header("authorization", &bearer).send().await?;
            ensure!(response.status() == 405 && response.headers()["allow"] == "POST", "{response:?}");
        }
        let ping = message(1, "ping", &json!({})).to_string();
        for _ in 0..MAX_ROUNDS {
            let start = Instant::now();
            let responses = futures::future::join_all((0..PINGS).map(|_| post(&[authorized], ping.clone()))).await;
            let (mut limited, time) = (0, start.elapsed());
            for response in responses {
                let response = response?;
                if response.status() == 429 {
                    ensure!(response.headers().contains_key("retry-after"), "{response:?}");
                    limited += 1;
                }
            }
            // A burst, and the messages that the rate permits while they arrive.
            let permitted = 20.0 + 10.0 * time.as_secs_f64();
            let admitted = PINGS - limited;
            ensure!(admitted > 0 && f64::from(admitted) <= permitted, "{admitted} of {PINGS} messages in {time:?}");
            if limited > 0 {
                return Ok(());
            }
        }
        Err(anyhow!("no message was refused in {MAX_ROUNDS} rounds"))
    })
}
