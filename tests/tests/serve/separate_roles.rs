//! Each role in a process of its own: aggregated APIs with the cache, controllers, webhooks, and the UI. Together they
//! do the work of a single process. Each process has only its own role, and its readiness does not depend on the
//! others. Logs are lines of JSON.

use std::collections::BTreeMap;
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::wait_for;
use serde_json::Value;

use crate::serve::network::Balancer;
use crate::serve::readers::get_text;
use crate::serve::replica::{self, REQUEST_TIMEOUT, Replica, free_port};
use crate::serve::test_env::{FLEET_CONFIG_MAPS, TestEnv};

const SEARCH: &str = "/apis/search.crowsnest.io/v1alpha1/query?q=kind:configmap%20name:first";
const IN_MEMBER: &str = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default";

fn start(env: &TestEnv, base_name: &'static str, roles: &str) -> Result<Replica> {
    let mut config = env.replica_config();
    config.flags.extend([format!("--roles={roles}"), "--log-format=json".to_owned(), "-v=2".to_owned()]);
    Replica::start(base_name, &config)
}

fn wait_until_ready(replica: &Replica) -> Result<()> {
    wait_for(&format!("{} to be ready", replica.name), || replica.is_ready()).with_context(|| replica.log())
}

fn is_listening(replica: &Replica) -> bool {
    TcpStream::connect(("127.0.0.1", replica.backend().port)).is_ok()
}

#[test]
fn roles_in_separate_processes_work_together() -> Result<()> {
    let Some(env) = TestEnv::start()? else { return Ok(()) };
    let (port, webhook_port) = (env.port.to_string(), free_port()?);
    let addresses = ["--host", "127.0.0.1", "--port", &port, "--webhook-host", "127.0.0.1", "--webhook-port"];
    let output = env.crowsnest(&[&["install"][..], &addresses, &[&webhook_port.to_string()]].concat())?;
    ensure!(output.ok, "{output:?}");

    let mut controllers = start(&env, "controllers", "controllers")?;
    wait_until_ready(&controllers)?;
    let mut aggregated = start(&env, "aggregated", "aggregated,cache")?;
    let _aggregated_balancer = Balancer::start(env.port, [aggregated.backend()])?;
    wait_until_ready(&aggregated)?;
    let logs = || format!("{}{}", controllers.log(), aggregated.log());
    // The webhook is not available, so nothing is stored.
    let error = env.propagate("early").expect_err("a policy was stored without a webhook");
    ensure!(format!("{error:#}").contains("failed calling webhook"), "{error:#}");
    ensure!(controllers.is_ready()? && aggregated.is_ready()?, "{}", logs());
    let mut webhook = start(&env, "webhook", "webhook")?;
    let _webhook_balancer = Balancer::start(webhook_port, [webhook.backend()])?;
    wait_until_ready(&webhook)?;
    env.join().with_context(logs)?;
    wait_for("the aggregated API to accept a registry", || Ok(env.register().is_ok())).with_context(logs)?;

    wait_for("a policy to be accepted", || Ok(env.propagate("first").is_ok())).with_context(|| webhook.log())?;
    wait_for("the first object to be propagated", || env.has_in_member("first")).with_context(logs)?;
    for (path, expected) in [(SEARCH, "\"first\""), (FLEET_CONFIG_MAPS, "\"first\""), (IN_MEMBER, "\"default\"")] {
        let mut last = String::new();
        wait_for(&format!("a response to {path}"), || {
            last = env.runtime.block_on(get_text(&env.cp_client, path)).unwrap_or_else(|error| error.to_string());
            Ok(last.contains(expected))
        })
        .with_context(|| format!("{last}\n{}", logs()))?;
    }
    ensure!(
        controllers.is_leader()? && !aggregated.is_leader()? && !webhook.is_leader()?,
        "{}{}",
        logs(),
        webhook.log()
    );
    ensure!(
        is_listening(&aggregated) && is_listening(&webhook) && !is_listening(&controllers),
        "the wrong processes listen"
    );
    wait_for("doctor to find no errors", || Ok(env.crowsnest(&["doctor"])?.ok))
        .with_context(|| format!("{:?}", env.crowsnest(&["doctor"])))?;

    // A stopped process interrupts only its own role.
    aggregated.kill()?;
    ensure!(
        !aggregated.is_ready()? && controllers.is_ready()? && webhook.is_ready()?,
        "{}{}",
        controllers.log(),
        webhook.log()
    );
    env.propagate("second")?;
    wait_for("the second object to be propagated", || env.has_in_member("second"))
        .with_context(|| controllers.log())?;
    aggregated.restart()?;
    wait_until_ready(&aggregated)?;
    let can_search = || Ok(env.runtime.block_on(get_text(&env.cp_client, SEARCH)).is_ok());
    wait_for("searches to succeed again", can_search).with_context(|| aggregated.log())?;
    controllers.link.cut();
    wait_for("the disconnected replica to be not ready", || Ok(!controllers.is_ready()?))
        .with_context(|| controllers.log())?;
    ensure!(aggregated.is_ready()? && webhook.is_ready()?, "{}{}", aggregated.log(), webhook.log());
    controllers.link.restore();
    wait_until_ready(&controllers)?;

    check_ui(&env)?;
    for replica in [&mut controllers, &mut aggregated, &mut webhook] {
        let (stopped, log) = replica.stop()?;
        ensure!(stopped.success(), "the process stopped with {stopped}: {log}");
    }
    check_logs_are_json(&env)?;
    env.ensure_logs_contain_no_secrets()
}

/// Checks a process with the role ui: it serves pages and passes on their requests with the user's credentials. It has
/// no credentials of its own.
fn check_ui(env: &TestEnv) -> Result<()> {
    let port = free_port()?;
    let mut config = env.replica_config();
    config.database = "sqlite:".to_owned();
    config.flags.extend(["--roles=ui".to_owned(), format!("--ui-listen=127.0.0.1:{port}")]);
    let mut ui = Replica::start("ui", &config)?;
    wait_until_ready(&ui)?;
    ensure!(!is_listening(&ui) && !ui.is_leader()?, "{}", ui.log());
    let request = |what: &str, head: &str, body: &str| {
        let head = format!("x-crowsnest-client: test\r\nContent-Type: application/json\r\n{head}");
        replica::send_request(port, what, &head, body, REQUEST_TIMEOUT)?.context("no response from the UI")
    };
    let page = request("GET /", "", "")?;
    ensure!(page.starts_with("HTTP/1.1 200") && page.contains("<div id=\"root\">"), "{page}");
    let unauthenticated = request(&format!("GET {SEARCH}"), "", "")?;
    ensure!(unauthenticated.starts_with("HTTP/1.1 401"), "{unauthenticated}");
    let kubeconfig = std::fs::read_to_string(&env.control_plane.kubeconfig)?;
    let session = request("POST /ui/session", "", &serde_json::json!({"kubeconfig": kubeconfig}).to_string())?;
    let cookies: Vec<&str> = session
        .lines()
        .filter_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next())
        .filter(|cookie| !cookie.ends_with('='))
        .collect();
    ensure!(session.starts_with("HTTP/1.1 200") && !cookies.is_empty(), "{session}");
    let cookie = format!("Cookie: {}\r\n", cookies.join("; "));
    let mut response = String::new();
    wait_for("the search of the UI to find the object", || {
        response = request(&format!("GET {SEARCH}"), &cookie, "")?;
        Ok(response.starts_with("HTTP/1.1 200") && response.contains("\"first\""))
    })
    .with_context(|| response.clone())?;
    let (stopped, log) = ui.stop()?;
    ensure!(stopped.success(), "the process stopped with {stopped}: {log}");
    Ok(())
}

/// Checks that each complete line of the logs is a JSON object with time, level and message.
fn check_logs_are_json(env: &TestEnv) -> Result<()> {
    let mut levels: BTreeMap<String, usize> = BTreeMap::new();
    for (path, log) in env.all_logs()? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !["controllers", "aggregated", "webhook"].iter().any(|base_name| name.starts_with(base_name)) {
            continue;
        }
        // A killed process may leave an incomplete line.
        let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
        ensure!(!complete.is_empty(), "{name} has logged nothing");
        for line in complete.lines() {
            let entry: Value = serde_json::from_str(line).with_context(|| format!("{name}: {line}"))?;
            let text = |field: &str| entry[field].as_str().with_context(|| format!("{name}: no {field} in {line}"));
            text("message")?;
            text("target")?;
            let time: jiff::Timestamp = text("timestamp")?.parse().with_context(|| format!("{name}: {line}"))?;
            ensure!(time > jiff::Timestamp::UNIX_EPOCH, "{name}: {line}");
            *levels.entry(text("level")?.to_owned()).or_default() += 1;
        }
    }
    let known = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];
    ensure!(levels.keys().all(|level| known.contains(&level.as_str())), "{levels:?}");
    ensure!(levels.contains_key("INFO") && levels.contains_key("DEBUG"), "{levels:?}");
    Ok(())
}

#[test]
fn the_exit_reason_is_json() -> Result<()> {
    let output = crate::serve::replica::run(&["serve", "--log-format=json", "--kubeconfig", "/nowhere/kubeconfig"])?;
    let last: Value =
        serde_json::from_str(output.err.lines().last().unwrap_or_default()).context(output.err.clone())?;
    let error = last["error"].as_str().unwrap_or_default();
    ensure!(
        !output.ok && last["level"] == "ERROR" && error.contains("cannot read the kubeconfig \"/nowhere/kubeconfig\""),
        "{output:?}"
    );
    Ok(())
}
