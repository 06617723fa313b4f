//! Members through the control plane's address with every kubectl: logs, exec, port-forward, cp as the calling user, and the
//! fleet as one cluster.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, until, with_each_kubectl};

const WEB: &str = include_str!("proxies/web.yaml");
const ALICE: &str = include_str!("proxies/alice.yaml");
const ALICE_IN_MEMBER: &str = include_str!("proxies/alice-in-member.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");

#[test]
fn members_are_reached_with_every_kubectl() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let server = fleet.server()?;
    // Once for all kubectls, which would race to create it.
    if let Some(kubectl) = fleet.any_kubectl()? {
        kubectl.ok(&["apply", "-f", "-"], REGISTRY)?;
    }
    with_each_kubectl(&fleet, |kubectl| {
        let name = format!("web-{}", kubectl.generation.replace('.', "-"));
        let web = WEB.replace("NAME", &name);
        for member in ["member1", "member2"] {
            kubectl.on(&fleet.kubeconfig(member)).ok(&["apply", "-f", "-"], &web)?;
        }
        let member1 = through(kubectl, &server, "member1");
        member1.until(&["get", "pod", &name], |out| out.contains("Running"))?;
        runs_commands(&member1, &name)?;
        has_a_terminal(&member1, &name)?;
        forwards_ports(&member1, &name, "member1")?;
        copies_both_ways(&member1, &name)?;
        follows_logs(&member1, &name)?;
        as_the_calling_user(kubectl, &fleet, &server, &name)?;
        shows_the_whole_fleet(kubectl, &server, &name)
    })?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn through(kubectl: &Kubectl, server: &str, member: &str) -> Kubectl {
    kubectl.with(&["--server", &format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy")])
}

fn runs_commands(member: &Kubectl, pod: &str) -> Result<()> {
    let sh = |script: &'static str| ["exec", "-i", pod, "--", "sh", "-c", script];
    let output = member.ok(&sh("cat; echo $HOSTNAME"), "typed\n")?;
    ensure!(output == format!("typed\n{pod}\n"), "{output:?}");
    let output =
        member.expect_output(&sh("echo out; echo err >&2; exit 3"), "", 3, "command terminated with exit code 3")?;
    ensure!(output.out == "out\n" && output.err.starts_with("err\n"), "{output:?}");
    member.expect_output(&["exec", pod, "--", "nosuch"], "", 1, "executable file not found in $PATH")?;
    member.expect_output(&["exec", "nosuch", "--", "ls"], "", 1, "pods \"nosuch\" not found")?;
    Ok(())
}

fn has_a_terminal(member: &Kubectl, pod: &str) -> Result<()> {
    let mut terminal = member.terminal(&["exec", "-it", pod, "--", "sh"])?;
    terminal.expect("/ # ")?;
    terminal.type_in("echo $((40+2))\r")?;
    terminal.expect("42\r\n")?;
    terminal.type_in("sleep 1000\r")?;
    terminal.expect("sleep 1000\r\n")?;
    terminal.type_in("\x03")?;
    terminal.expect("/ # ")?;
    terminal.type_in("exit 5\r")?;
    let (code, _) = terminal.end()?;
    ensure!(code == Some(5), "{code:?}");
    Ok(())
}

fn forwards_ports(member: &Kubectl, pod: &str, cluster: &str) -> Result<()> {
    let mut forward = member.stream(&["port-forward", &format!("pod/{pod}"), ":80"])?;
    forward.expect("127.0.0.1:")?;
    let port: u16 = forward.expect(" -> 80")?.parse()?;
    for _ in 0..3 {
        let mut connection = TcpStream::connect(("127.0.0.1", port))?;
        connection.write_all(b"GET /x HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        connection.read_to_string(&mut response)?;
        ensure!(response.contains(&format!("Hello from pod default/{pod} on node {cluster}-node-")), "{response}");
    }
    Ok(())
}

fn copies_both_ways(member: &Kubectl, pod: &str) -> Result<()> {
    let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(member.folder.join("sent"), &bytes)?;
    member.ok(&["cp", "sent", &format!("{pod}:/tmp/there")], "")?;
    member.expect_output(&["exec", pod, "--", "wc", "-c", "/tmp/there"], "", 0, "400000 /tmp/there")?;
    member.ok(&["cp", &format!("{pod}:/tmp/there"), "back"], "")?;
    ensure!(std::fs::read(member.folder.join("back"))? == bytes);
    Ok(())
}

/// A follower receives lines as they are written and ends with the pod.
fn follows_logs(member: &Kubectl, pod: &str) -> Result<()> {
    let mut follower = member.stream(&["logs", "-f", pod, "--tail", "1"])?;
    follower.expect("\n")?;
    for word in ["first", "second"] {
        member.ok(&["exec", pod, "--", "sh", "-c", &format!("echo the {word} > /proc/1/fd/1")], "")?;
        follower.expect(&format!("the {word}\n"))?;
    }
    member.ok(&["delete", "pod", pod, "--grace-period=1"], "")?;
    let (code, _) = follower.end()?;
    ensure!(code == Some(0), "{code:?}");
    member.expect_output(&["logs", "nosuch"], "", 1, "pods \"nosuch\" not found")?;
    Ok(())
}

/// Rights on `clusters/proxy` admit a user; her permissions there are the member's.
fn as_the_calling_user(kubectl: &Kubectl, fleet: &Fleet, server: &str, pod: &str) -> Result<()> {
    let user = format!("alice-{pod}");
    kubectl.ok(&["apply", "-f", "-"], &ALICE.replace("NAME", &user))?;
    let member2 = kubectl.on(&fleet.kubeconfig("member2"));
    member2.ok(&["apply", "-f", "-"], &ALICE_IN_MEMBER.replace("NAME", &user))?;
    let alice = kubectl.with(&["--as", &user]);

    let there = through(&alice, server, "member2");
    there.until(&["get", "pod", pod], |out| out.contains("Running"))?;
    let output = there.ok(&["exec", pod, "--", "sh", "-c", "echo hello"], "")?;
    ensure!(output == "hello\n", "{output}");
    let refusals: [(&[&str], String); 3] = [
        (
            &["get", "secrets"],
            format!(
                "secrets is forbidden: User \"{user}\" cannot list resource \"secrets\" in API group \"\" in the namespace \"default\""
            ),
        ),
        (
            &["delete", "pod", pod],
            format!(
                "pods \"{pod}\" is forbidden: User \"{user}\" cannot delete resource \"pods\" in API group \"\" in the namespace \"default\""
            ),
        ),
        (
            &["get", "nodes"],
            format!(
                "nodes is forbidden: User \"{user}\" cannot list resource \"nodes\" in API group \"\" at the cluster scope"
            ),
        ),
    ];
    for (args, text) in refusals {
        let output = there.expect_output(args, "", 1, &text)?;
        ensure!(output.err.starts_with("Error from server (Forbidden): "), "{output:?}");
    }
    let text = format!(
        "clusters.cluster.karmada.io \"member1\" is forbidden: User \"{user}\" cannot get resource \"clusters/proxy\""
    );
    let path = "/apis/cluster.karmada.io/v1alpha1/clusters/member1/proxy/api/v1/pods";
    alice.expect_output(&["get", "--raw", path], "", 1, &text).map(drop)
}

/// One address for all members: rows have their cluster, and a pod is addressed without it.
fn shows_the_whole_fleet(kubectl: &Kubectl, server: &str, pod: &str) -> Result<()> {
    let everywhere = format!("{server}/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy");
    let everywhere = kubectl.with(&["--server", &everywhere]);
    let clusters_of = |table: &str| -> Vec<String> {
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.get(1) == Some(&pod)).map(|row| row[2].to_owned()).collect()
    };
    // It has been deleted in member1.
    let table = everywhere.until(&["get", "pods", "-A"], |out| clusters_of(out) == ["member2"])?;
    let columns: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    ensure!(columns == ["NAMESPACE", "NAME", "CLUSTER", "READY", "STATUS", "RESTARTS", "AGE"], "{table}");
    everywhere.expect_output(&["get", "pod", pod, "-o", "wide"], "", 0, "member2-node-")?;
    everywhere.expect_output(&["describe", "pod", pod], "", 0, "cached-from-cluster: member2")?;
    everywhere.expect_output(&["logs", pod, "--tail", "1"], "", 0, "\n")?;
    works_with(&everywhere, pod)?;

    let mut watch = everywhere.stream(&["get", "pods", "-A", "-l", &format!("app={pod}"), "-w"])?;
    watch.expect(pod)?;
    through(kubectl, server, "member2").ok(&["label", "pod", pod, "seen=yes"], "")?;
    watch.expect(pod)?;
    through(kubectl, server, "member1").ok(&["apply", "-f", "-"], &WEB.replace("NAME", pod))?;
    watch.expect("member1")?;
    let text = "ambiguous objects in clusters [member1, member2]";
    until_ambiguous(&everywhere, pod, text)?;
    reads_all_members(kubectl, server, pod)
}

/// The members are read live, in pages and by a watch, as one cluster.
fn reads_all_members(kubectl: &Kubectl, server: &str, pod: &str) -> Result<()> {
    let all = through(kubectl, server, "*");
    let selector = format!("app={pod}");
    for paging in [None, Some("--chunk-size=1")] {
        let mut get = vec!["get", "pods", "-A", "-l", selector.as_str()];
        get.extend(paging);
        let table = all.ok(&get, "")?;
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let clusters: Vec<&str> = rows[1..].iter().map(|row| row[2]).collect();
        ensure!(rows[0][..4] == ["NAMESPACE", "NAME", "CLUSTER", "READY"], "{table}");
        ensure!(clusters == ["member1", "member2"], "{table}");
    }
    let mut watch = all.stream(&["get", "pods", "-A", "-l", &selector, "-w"])?;
    watch.expect("member2")?;
    through(kubectl, server, "member2").ok(&["label", "--overwrite", "pod", pod, "app=other"], "")?;
    watch.expect("member2")?;
    through(kubectl, server, "member2").ok(&["label", "--overwrite", "pod", pod, &selector], "")?;
    watch.expect("member2")?;
    Ok(())
}

/// Common operations on a pod without a cluster.
fn works_with(everywhere: &Kubectl, pod: &str) -> Result<()> {
    runs_commands(everywhere, pod)?;
    copies_both_ways(everywhere, pod)?;
    forwards_ports(everywhere, pod, "member2")?;
    everywhere.ok(&["wait", "--for=condition=Ready", "pod", pod, "--timeout=60s"], "")?;
    let web = WEB.replace("NAME", pod);
    everywhere.expect_output(&["apply", "-f", "-"], &web, 0, &format!("pod/{pod} unchanged"))?;
    let marked = web.replace("metadata:\n", "metadata:\n  annotations:\n    marked: here\n");
    everywhere.expect_output(&["apply", "-f", "-"], &marked, 0, &format!("pod/{pod} configured"))?;
    // A condition with the resourceVersion of the merged list.
    let version = everywhere.ok(&["get", "pod", pod, "-o", "jsonpath={.metadata.resourceVersion}"], "")?;
    let step = |value: &str| {
        let test = format!(r#"{{"op":"test","path":"/metadata/resourceVersion","value":"{value}"}}"#);
        format!(r#"[{test},{{"op":"add","path":"/metadata/labels/patched","value":"yes"}}]"#)
    };
    everywhere.ok(&["patch", "pod", pod, "--type=json", "-p", &step(version.trim())], "")?;
    everywhere.expect_output(
        &["patch", "pod", pod, "--type=json", "-p", &step("1")],
        "",
        1,
        "The request is invalid",
    )?;
    Ok(())
}

fn until_ambiguous(everywhere: &Kubectl, pod: &str, text: &str) -> Result<()> {
    until("two pods of one name to be refused", || {
        let output = everywhere.run(&["get", "pod", pod], "")?;
        Ok(output.code == Some(1) && output.err.contains(text))
    })
}
