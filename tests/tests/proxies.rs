//! Members through the control plane's address with every kubectl: logs, exec, port-forward, cp as the calling user,
//! and the fleet as one cluster.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for, with_each_kubectl};

const WEB: &str = include_str!("proxies/web.yaml");
const ALICE: &str = include_str!("proxies/alice.yaml");
const ALICE_IN_MEMBER: &str = include_str!("proxies/alice-in-member.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");

#[test]
fn members_are_reached_with_every_kubectl() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let server = fleet.server()?;
    // Applied once, because concurrent kubectls would conflict.
    if let Some(kubectl) = fleet.any_kubectl()? {
        kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    }
    with_each_kubectl(&fleet, |kubectl| {
        let name = format!("web-{}", kubectl.version.replace('.', "-"));
        let web = WEB.replace("NAME", &name);
        for member in ["member1", "member2"] {
            kubectl.with_kubeconfig(&fleet.kubeconfig(member)).run_ok(&["apply", "-f", "-"], &web)?;
        }
        let member1 = via_member(kubectl, &server, "member1");
        member1.run_until(&["get", "pod", &name], |out| out.contains("Running"))?;
        check_exec(&member1, &name)?;
        check_terminal(&member1, &name)?;
        check_port_forward(&member1, &name, "member1")?;
        check_cp(&member1, &name)?;
        check_logs(&member1, &name)?;
        check_caller_identity(kubectl, &fleet, &server, &name)?;
        check_fleet_proxy(kubectl, &server, &name)
    })?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn via_member(kubectl: &Kubectl, server: &str, member: &str) -> Kubectl {
    kubectl.with_flags(&["--server", &format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy")])
}

fn check_exec(member: &Kubectl, pod: &str) -> Result<()> {
    let sh = |script: &'static str| ["exec", "-i", pod, "--", "sh", "-c", script];
    let output = member.run_ok(&sh("cat; echo $HOSTNAME"), "typed\n")?;
    ensure!(output == format!("typed\n{pod}\n"), "{output:?}");
    let output =
        member.expect_output(&sh("echo out; echo err >&2; exit 3"), "", 3, "command terminated with exit code 3")?;
    ensure!(output.out == "out\n" && output.err.starts_with("err\n"), "{output:?}");
    member.expect_output(&["exec", pod, "--", "nosuch"], "", 1, "executable file not found in $PATH")?;
    member.expect_output(&["exec", "nosuch", "--", "ls"], "", 1, "pods \"nosuch\" not found")?;
    Ok(())
}

fn check_terminal(member: &Kubectl, pod: &str) -> Result<()> {
    let mut terminal = member.terminal(&["exec", "-it", pod, "--", "sh"])?;
    terminal.expect("/ # ")?;
    terminal.write_input("echo $((40+2))\r")?;
    terminal.expect("42\r\n")?;
    terminal.write_input("sleep 1000\r")?;
    terminal.expect("sleep 1000\r\n")?;
    terminal.write_input("\x03")?;
    terminal.expect("/ # ")?;
    terminal.write_input("exit 5\r")?;
    let (code, _) = terminal.close_input()?;
    ensure!(code == Some(5), "{code:?}");
    Ok(())
}

fn check_port_forward(member: &Kubectl, pod: &str, cluster: &str) -> Result<()> {
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

fn check_cp(member: &Kubectl, pod: &str) -> Result<()> {
    let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(member.folder.join("sent"), &bytes)?;
    member.run_ok(&["cp", "sent", &format!("{pod}:/tmp/there")], "")?;
    member.expect_output(&["exec", pod, "--", "wc", "-c", "/tmp/there"], "", 0, "400000 /tmp/there")?;
    member.run_ok(&["cp", &format!("{pod}:/tmp/there"), "back"], "")?;
    ensure!(std::fs::read(member.folder.join("back"))? == bytes);
    Ok(())
}

/// A follower receives lines as they are written and ends with the pod.
fn check_logs(member: &Kubectl, pod: &str) -> Result<()> {
    let mut follower = member.stream(&["logs", "-f", pod, "--tail", "1"])?;
    follower.expect("\n")?;
    for word in ["first", "second"] {
        member.run_ok(&["exec", pod, "--", "sh", "-c", &format!("echo the {word} > /proc/1/fd/1")], "")?;
        follower.expect(&format!("the {word}\n"))?;
    }
    member.run_ok(&["delete", "pod", pod, "--grace-period=1"], "")?;
    let (code, _) = follower.close_input()?;
    ensure!(code == Some(0), "{code:?}");
    member.expect_output(&["logs", "nosuch"], "", 1, "pods \"nosuch\" not found")?;
    Ok(())
}

/// A user needs the permission on `clusters/proxy`; the user's permissions in the member are granted by the member's RBAC
/// objects.
fn check_caller_identity(kubectl: &Kubectl, fleet: &Fleet, server: &str, pod: &str) -> Result<()> {
    let user = format!("alice-{pod}");
    kubectl.run_ok(&["apply", "-f", "-"], &ALICE.replace("NAME", &user))?;
    let member2 = kubectl.with_kubeconfig(&fleet.kubeconfig("member2"));
    member2.run_ok(&["apply", "-f", "-"], &ALICE_IN_MEMBER.replace("NAME", &user))?;
    let alice = kubectl.with_flags(&["--as", &user]);

    let in_member = via_member(&alice, server, "member2");
    in_member.run_until(&["get", "pod", pod], |out| out.contains("Running"))?;
    let output = in_member.run_ok(&["exec", pod, "--", "sh", "-c", "echo hello"], "")?;
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
        let output = in_member.expect_output(args, "", 1, &text)?;
        ensure!(output.err.starts_with("Error from server (Forbidden): "), "{output:?}");
    }
    let text = format!(
        "clusters.cluster.karmada.io \"member1\" is forbidden: User \"{user}\" cannot get resource \"clusters/proxy\""
    );
    let path = "/apis/cluster.karmada.io/v1alpha1/clusters/member1/proxy/api/v1/pods";
    alice.expect_output(&["get", "--raw", path], "", 1, &text).map(drop)
}

/// One address for all members: rows name their cluster, and a pod is addressed without its cluster.
fn check_fleet_proxy(kubectl: &Kubectl, server: &str, pod: &str) -> Result<()> {
    let via_fleet = format!("{server}/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy");
    let via_fleet = kubectl.with_flags(&["--server", &via_fleet]);
    let clusters_of = |table: &str| -> Vec<String> {
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.get(1) == Some(&pod)).map(|row| row[2].to_owned()).collect()
    };
    // The pod has been deleted in member1.
    let table = via_fleet.run_until(&["get", "pods", "-A"], |out| clusters_of(out) == ["member2"])?;
    let columns: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    ensure!(columns == ["NAMESPACE", "NAME", "CLUSTER", "READY", "STATUS", "RESTARTS", "AGE"], "{table}");
    via_fleet.expect_output(&["get", "pod", pod, "-o", "wide"], "", 0, "member2-node-")?;
    via_fleet.expect_output(&["describe", "pod", pod], "", 0, "cached-from-cluster: member2")?;
    via_fleet.expect_output(&["logs", pod, "--tail", "1"], "", 0, "\n")?;
    check_operations(&via_fleet, pod)?;

    let mut watch = via_fleet.stream(&["get", "pods", "-A", "-l", &format!("app={pod}"), "-w"])?;
    watch.expect(pod)?;
    via_member(kubectl, server, "member2").run_ok(&["label", "pod", pod, "seen=yes"], "")?;
    watch.expect(pod)?;
    via_member(kubectl, server, "member1").run_ok(&["apply", "-f", "-"], &WEB.replace("NAME", pod))?;
    watch.expect("member1")?;
    let text = "ambiguous objects in clusters [member1, member2]";
    wait_until_ambiguous(&via_fleet, pod, text)?;
    check_all_members(kubectl, server, pod)
}

/// Lists in pages and watches of all members (`clusters/*/proxy`), read directly from the members.
fn check_all_members(kubectl: &Kubectl, server: &str, pod: &str) -> Result<()> {
    let all_members = via_member(kubectl, server, "*");
    let selector = format!("app={pod}");
    for paging in [None, Some("--chunk-size=1")] {
        let mut get = vec!["get", "pods", "-A", "-l", selector.as_str()];
        get.extend(paging);
        let table = all_members.run_ok(&get, "")?;
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let clusters: Vec<&str> = rows[1..].iter().map(|row| row[2]).collect();
        ensure!(rows[0][..4] == ["NAMESPACE", "NAME", "CLUSTER", "READY"], "{table}");
        ensure!(clusters == ["member1", "member2"], "{table}");
    }
    let mut watch = all_members.stream(&["get", "pods", "-A", "-l", &selector, "-w"])?;
    watch.expect("member2")?;
    via_member(kubectl, server, "member2").run_ok(&["label", "--overwrite", "pod", pod, "app=other"], "")?;
    watch.expect("member2")?;
    via_member(kubectl, server, "member2").run_ok(&["label", "--overwrite", "pod", pod, &selector], "")?;
    watch.expect("member2")?;
    Ok(())
}

/// Common operations on a pod that is addressed without its cluster.
fn check_operations(via_fleet: &Kubectl, pod: &str) -> Result<()> {
    check_exec(via_fleet, pod)?;
    check_cp(via_fleet, pod)?;
    check_port_forward(via_fleet, pod, "member2")?;
    via_fleet.run_ok(&["wait", "--for=condition=Ready", "pod", pod, "--timeout=240s"], "")?;
    let web = WEB.replace("NAME", pod);
    via_fleet.expect_output(&["apply", "-f", "-"], &web, 0, &format!("pod/{pod} unchanged"))?;
    let marked = web.replace("metadata:\n", "metadata:\n  annotations:\n    marked: here\n");
    via_fleet.expect_output(&["apply", "-f", "-"], &marked, 0, &format!("pod/{pod} configured"))?;
    // A patch with a precondition on the composite resourceVersion that the fleet-wide proxy returned.
    let version = via_fleet.run_ok(&["get", "pod", pod, "-o", "jsonpath={.metadata.resourceVersion}"], "")?;
    let json_patch = |value: &str| {
        let test = format!(r#"{{"op":"test","path":"/metadata/resourceVersion","value":"{value}"}}"#);
        format!(r#"[{test},{{"op":"add","path":"/metadata/labels/patched","value":"yes"}}]"#)
    };
    via_fleet.run_ok(&["patch", "pod", pod, "--type=json", "-p", &json_patch(version.trim())], "")?;
    via_fleet.expect_output(
        &["patch", "pod", pod, "--type=json", "-p", &json_patch("1")],
        "",
        1,
        "The request is invalid",
    )?;
    Ok(())
}

fn wait_until_ambiguous(via_fleet: &Kubectl, pod: &str, text: &str) -> Result<()> {
    wait_for("a name that is in two members to be refused", || {
        let output = via_fleet.run(&["get", "pod", pod], "")?;
        Ok(output.code == Some(1) && output.err.contains(text))
    })
}
