//! `crowsnest logs` and `crowsnest exec` with two members: merged and followed logs, commands with their exit codes,
//! and the annotation that disables exec in a member.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use serde_json::Value;

const WEB: &str = include_str!("proxies/web.yaml");
const MEMBERS: [&str; 2] = ["member1", "member2"];

#[test]
fn logs_and_sessions_reach_the_whole_fleet() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    for member in MEMBERS {
        kubectl
            .with_kubeconfig(&fleet.kubeconfig(member))
            .run_ok(&["apply", "-f", "-"], &WEB.replace("NAME", "web"))?;
    }
    wait_for_running_pods(&fleet, "app=web", MEMBERS.len())?;
    check_merged_logs(&fleet).with_context(|| fleet.log())?;
    check_followed_logs(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_exec(&fleet).with_context(|| fleet.log())?;
    check_exec_annotation(&fleet, &kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Waits until a number of pods with a label are found and running.
fn wait_for_running_pods(fleet: &Fleet, label: &str, pods: usize) -> Result<()> {
    wait_for(&format!("{pods} pods {label}"), || {
        let output = fleet.crowsnest(&["search", &format!("kind:pod label:{label} status:Running"), "-o", "name"])?;
        Ok(output.out.lines().count() == pods)
    })
}

/// Lines of all members are merged in the order of their times.
fn check_merged_logs(fleet: &Fleet) -> Result<()> {
    let mut output = None;
    // A member that has just joined may refuse impersonation for a moment, which is reported.
    wait_for("logs of all members", || {
        let now = fleet.crowsnest(&["logs", "-n", "default", "-l", "app=web", "--tail", "-1", "-o", "json"])?;
        let complete = now.code == Some(0);
        ensure!(complete || now.code == Some(5) && now.err.contains("cannot impersonate"), "{now:?}");
        output = Some(now);
        Ok(complete)
    })?;
    let output = output.context("no output")?;
    let lines = output.out.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let times: Vec<&str> = lines.iter().filter_map(|line| line["time"].as_str()).collect();
    ensure!(times.len() == lines.len() && times.is_sorted(), "{times:?}");
    for member in MEMBERS {
        let lines_of_member = lines.iter().filter(|line| line["cluster"] == member && line["pod"] == "web");
        let texts: Vec<&str> = lines_of_member.filter_map(|line| line["text"].as_str()).collect();
        ensure!(texts.iter().any(|text| text.starts_with("nginx starting")), "{member}: {texts:?}");
    }
    let output = fleet.crowsnest(&["logs", "label:app=web", "--cluster", "member2", "--include", "^ready$"])?;
    ensure!(output.out == "member2 default/web nginx | ready\n" && output.err.is_empty(), "{output:?}");
    let output = fleet.crowsnest(&["logs", "label:app=web", "--max-log-requests", "1"])?;
    ensure!(
        output.code == Some(1)
            && output.err.contains("2 pods with 2 logs were found, and at most 1 can be read at once"),
        "{output:?}"
    );
    let output = fleet.crowsnest(&["logs", "label:app=web", "--include", "("])?;
    ensure!(output.code == Some(1) && output.err.contains("include: Invalid value"), "{output:?}");
    let output = fleet.crowsnest(&["logs", "label:app=web", "--previous", "--cluster", "member1"])?;
    ensure!(output.code == Some(5) && output.err.contains("previous terminated container"), "{output:?}");
    let output = fleet.crowsnest(&["logs", "label:app=nosuch"])?;
    ensure!(output.code == Some(0) && output.err == "no pods found\n", "{output:?}");
    Ok(())
}

/// New lines are streamed immediately, and a new pod is added.
fn check_followed_logs(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let mut logs = fleet.crowsnest_stream(&["logs", "-f", "label:app=web OR label:app=late", "--tail", "1"])?;
    for _ in MEMBERS {
        logs.expect(" default/web nginx | ")?;
    }
    let script = "echo said later > /proc/1/fd/1";
    let output = fleet.crowsnest(&["exec", "--cluster", "member2", "web", "--", "sh", "-c", script])?;
    ensure!(output.code == Some(0), "{output:?}");
    logs.expect("member2 default/web nginx | said later\n")?;
    let member2 = kubectl.with_kubeconfig(&fleet.kubeconfig("member2"));
    member2.run_ok(&["apply", "-f", "-"], &WEB.replace("NAME", "late"))?;
    logs.expect("member2 default/late nginx | nginx starting")?;
    Ok(())
}

fn check_exec(fleet: &Fleet) -> Result<()> {
    wait_for_running_pods(fleet, "app=late", 1)?;
    let script = "echo out; echo err >&2; exit 3";
    let output = fleet.crowsnest(&["exec", "late", "--", "sh", "-c", script])?;
    ensure!(output.code == Some(3) && output.out == "out\n" && output.err == "err\n", "{output:?}");
    let output = fleet.crowsnest(&["exec", "web", "--", "ls"])?;
    let text = "pod default/web is in several clusters; choose one with --cluster (member1, member2)";
    ensure!(output.code == Some(1) && output.err.contains(text), "{output:?}");
    let output = fleet.crowsnest(&["exec", "nosuch", "--", "ls"])?;
    ensure!(
        output.code == Some(1) && output.err.contains("no cluster has pod default/nosuch that you can read"),
        "{output:?}"
    );
    let output = fleet.crowsnest(&["exec", "--cluster", "member1", "nosuch", "--", "ls"])?;
    ensure!(output.code == Some(1) && output.err.contains("pods \"nosuch\" not found"), "{output:?}");

    let mut typing = fleet.crowsnest_stream(&["exec", "-i", "--cluster", "member1", "web", "--", "cat"])?;
    typing.write_input("typed\n")?;
    typing.expect("typed\n")?;
    let (code, rest) = typing.close_input()?;
    ensure!(code == Some(0) && rest.is_empty(), "{code:?} {rest:?}");

    let mut terminal = fleet.crowsnest_terminal(&["exec", "-it", "--cluster", "member1", "web", "--", "sh"])?;
    terminal.expect("/ # ")?;
    terminal.write_input("sleep 1000\r")?;
    terminal.expect("sleep 1000\r\n")?;
    // Ctrl-C is sent as a character; it does not interrupt the local command.
    terminal.write_input("\x03")?;
    terminal.expect("/ # ")?;
    terminal.write_input("exit 5\r")?;
    let (code, _) = terminal.close_input()?;
    ensure!(code == Some(5), "{code:?}");
    Ok(())
}

/// The annotation of a Cluster disables exec in its pods, but not their logs.
fn check_exec_annotation(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["annotate", "cluster", "member1", "proxy.crowsnest.io/exec=disabled"], "")?;
    let exec = |member: &str| fleet.crowsnest(&["exec", "--cluster", member, "web", "--", "true"]);
    wait_for("exec to be forbidden", || {
        let output = exec("member1")?;
        Ok(output.code == Some(1) && output.err.contains("proxy.crowsnest.io/exec: \"disabled\" forbids exec"))
    })?;
    ensure!(exec("member2")?.code == Some(0));
    let output = fleet.crowsnest(&["logs", "label:app=web", "--cluster", "member1", "--tail", "1"])?;
    ensure!(output.code == Some(0) && output.out.starts_with("member1 default/web nginx | "), "{output:?}");
    let path = "/apis/cluster.karmada.io/v1alpha1/clusters/*/proxy/api/v1/namespaces/default/pods/late/proxy/";
    kubectl.expect_output(&["get", "--raw", path], "", 0, "Hello from pod default/late")?;
    kubectl.run_ok(&["annotate", "--overwrite", "cluster", "member1", "proxy.crowsnest.io/exec=enabled"], "")?;
    wait_for("exec to be allowed again", || Ok(exec("member1")?.code == Some(0)))
}
