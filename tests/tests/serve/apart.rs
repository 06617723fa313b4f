//! Roles in separate processes: aggregated APIs, controllers, webhooks, and the UI. Together they do the work of a
//! single process, each has only its own role, and the state that one reports is correct when another is unavailable.
//! Their logs are lines of JSON.

use std::collections::BTreeMap;
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::until;
use serde_json::Value;

use crate::serve::reading::ask;
use crate::serve::relay::Balancer;
use crate::serve::site::{self, ANSWERS_WITHIN, Replica, free_port};
use crate::serve::world::{MAPS_EVERYWHERE, World};

const SEARCH: &str = "/apis/search.crowsnest.io/v1alpha1/query?q=kind:configmap%20name:first";
const IN_MEMBER: &str = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default";

fn start(world: &World, station: &'static str, roles: &str) -> Result<Replica> {
    let mut site = world.site();
    site.flags.extend([format!("--roles={roles}"), "--log-format=json".to_owned(), "-v=2".to_owned()]);
    Replica::start(station, &site)
}

fn ready(replica: &Replica) -> Result<()> {
    until(&format!("{} to be ready", replica.name), || replica.is_ready()).with_context(|| replica.log())
}

fn listens(replica: &Replica) -> bool {
    TcpStream::connect(("127.0.0.1", replica.backend().port)).is_ok()
}

#[test]
fn roles_in_separate_processes_work_together() -> Result<()> {
    let Some(world) = World::start()? else { return Ok(()) };
    let (port, webhooks) = (world.port.to_string(), free_port()?);
    let addresses = ["--host", "127.0.0.1", "--port", &port, "--webhook-host", "127.0.0.1", "--webhook-port"];
    let output = world.crowsnest(&[&["install"][..], &addresses, &[&webhooks.to_string()]].concat())?;
    ensure!(output.ok, "{output:?}");

    let mut steers = start(&world, "steers", "controllers")?;
    ready(&steers)?;
    let mut answers = start(&world, "answers", "aggregated,cache")?;
    let _answered = Balancer::start(world.port, [answers.backend()])?;
    ready(&answers)?;
    let logs = || format!("{}{}", steers.log(), answers.log());
    // The webhook is not available, so nothing is stored.
    let refusal = world.propagate("early").expect_err("a policy was stored that nobody has looked at");
    ensure!(format!("{refusal:#}").contains("failed calling webhook"), "{refusal:#}");
    ensure!(steers.is_ready()? && answers.is_ready()?, "{}", logs());
    let mut admits = start(&world, "admits", "webhook")?;
    let _admitted = Balancer::start(webhooks, [admits.backend()])?;
    ready(&admits)?;
    world.join().with_context(logs)?;
    until("the aggregated API to accept a registry", || Ok(world.register().is_ok())).with_context(logs)?;

    until("a policy to be taken", || Ok(world.propagate("first").is_ok())).with_context(|| admits.log())?;
    until("the first object to arrive", || world.has_arrived("first")).with_context(logs)?;
    for (path, wanted) in [(SEARCH, "\"first\""), (MAPS_EVERYWHERE, "\"first\""), (IN_MEMBER, "\"default\"")] {
        let mut last = String::new();
        until(&format!("{path} to be answered"), || {
            last = world.runtime.block_on(ask(&world.to_cp, path)).unwrap_or_else(|error| error.to_string());
            Ok(last.contains(wanted))
        })
        .with_context(|| format!("{last}\n{}", logs()))?;
    }
    ensure!(steers.leads()? && !answers.leads()? && !admits.leads()?, "{}{}", logs(), admits.log());
    ensure!(listens(&answers) && listens(&admits) && !listens(&steers), "other processes listen than expected");
    let doctor = world.crowsnest(&["doctor"])?;
    ensure!(doctor.ok, "{doctor:?}");

    // A stopped process interrupts only its own role.
    answers.kill()?;
    ensure!(!answers.is_ready()? && steers.is_ready()? && admits.is_ready()?, "{}{}", steers.log(), admits.log());
    world.propagate("second")?;
    until("the second object to arrive", || world.has_arrived("second")).with_context(|| steers.log())?;
    answers.start_again()?;
    ready(&answers)?;
    let searched = || Ok(world.runtime.block_on(ask(&world.to_cp, SEARCH)).is_ok());
    until("searches to work again", searched).with_context(|| answers.log())?;
    steers.cable.cut();
    until("the disconnected replica to be not ready", || Ok(!steers.is_ready()?)).with_context(|| steers.log())?;
    ensure!(answers.is_ready()? && admits.is_ready()?, "{}{}", answers.log(), admits.log());
    steers.cable.mend();
    ready(&steers)?;

    shows_pages(&world)?;
    for replica in [&mut steers, &mut answers, &mut admits] {
        let (stopped, log) = replica.stop()?;
        ensure!(stopped.success(), "it stopped with {stopped}: {log}");
    }
    logs_are_json(&world)?;
    world.logs_tell_no_secret()
}

/// The UI alone: pages, and their requests with the user's credentials; this process has none of its own.
fn shows_pages(world: &World) -> Result<()> {
    let port = free_port()?;
    let mut site = world.site();
    site.database = "sqlite:".to_owned();
    site.flags.extend(["--roles=ui".to_owned(), format!("--ui-listen=127.0.0.1:{port}")]);
    let mut shows = Replica::start("shows", &site)?;
    ready(&shows)?;
    ensure!(!listens(&shows) && !shows.leads()?, "{}", shows.log());
    let request = |what: &str, head: &str, body: &str| {
        let head = format!("x-crowsnest-client: test\r\nContent-Type: application/json\r\n{head}");
        site::ask(port, what, &head, body, ANSWERS_WITHIN)?.context("the UI does not answer")
    };
    let page = request("GET /", "", "")?;
    ensure!(page.starts_with("HTTP/1.1 200") && page.contains("<div id=\"root\">"), "{page}");
    let stranger = request(&format!("GET {SEARCH}"), "", "")?;
    ensure!(stranger.starts_with("HTTP/1.1 401"), "{stranger}");
    let kubeconfig = std::fs::read_to_string(&world.control_plane.kubeconfig)?;
    let session = request("POST /ui/session", "", &serde_json::json!({"kubeconfig": kubeconfig}).to_string())?;
    let cookies: Vec<&str> = session
        .lines()
        .filter_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next())
        .filter(|cookie| !cookie.ends_with('='))
        .collect();
    ensure!(session.starts_with("HTTP/1.1 200") && !cookies.is_empty(), "{session}");
    let cookie = format!("Cookie: {}\r\n", cookies.join("; "));
    let mut found = String::new();
    until("the search of the UI to find the object", || {
        found = request(&format!("GET {SEARCH}"), &cookie, "")?;
        Ok(found.starts_with("HTTP/1.1 200") && found.contains("\"first\""))
    })
    .with_context(|| found.clone())?;
    let (stopped, log) = shows.stop()?;
    ensure!(stopped.success(), "it stopped with {stopped}: {log}");
    Ok(())
}

/// Each line is an object with time, level and message.
fn logs_are_json(world: &World) -> Result<()> {
    let mut levels: BTreeMap<String, usize> = BTreeMap::new();
    for (path, log) in world.all_logs()? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !["steers", "answers", "admits"].iter().any(|station| name.starts_with(station)) {
            continue;
        }
        // A killed process may leave an incomplete line.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        ensure!(!whole.is_empty(), "{name} has logged nothing");
        for line in whole.lines() {
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
    let output = crate::serve::site::run(&["serve", "--log-format=json", "--kubeconfig", "/nowhere/kubeconfig"])?;
    let last: Value =
        serde_json::from_str(output.err.lines().last().unwrap_or_default()).context(output.err.clone())?;
    let error = last["error"].as_str().unwrap_or_default();
    ensure!(
        !output.ok && last["level"] == "ERROR" && error.contains("cannot read the kubeconfig \"/nowhere/kubeconfig\""),
        "{output:?}"
    );
    Ok(())
}
