//! Operations with kubectl (top, describe, cordon, drain) in one member through its address and in the whole fleet
//! through the fleet-wide proxy, with every kubectl. Names in several clusters are addressed by cluster.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, until, with_each_kubectl};

const REGISTRY: &str = include_str!("operations/fleet.yaml");
const NODE: &str = include_str!("operations/node.yaml");
const EVERYWHERE: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";

/// A kubectl, and the objects created for it in both members.
struct Walk<'a> {
    fleet: &'a Fleet,
    kubectl: &'a Kubectl,
    server: &'a str,
    suffix: String,
}

#[test]
fn operators_work_with_every_kubectl() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let server = fleet.server()?;
    if let Some(kubectl) = fleet.any_kubectl()? {
        kubectl.ok(&["apply", "-f", "-"], REGISTRY)?;
    }
    with_each_kubectl(&fleet, |kubectl| {
        let suffix = kubectl.generation.replace('.', "-");
        let walk = Walk { fleet: &fleet, kubectl, server: &server, suffix };
        walk.prepare()?;
        walk.top().context("top")?;
        walk.describe().context("describe")?;
        walk.drain().context("drain")
    })?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

impl Walk<'_> {
    /// A node of the same name in both members, with a pod of different name on each, and another node in the second.
    fn prepare(&self) -> Result<()> {
        for (member, node, pod) in
            [("member1", "shared", "one"), ("member2", "shared", "two"), ("member2", "own", "three")]
        {
            let objects = NODE.replace("NODE", &self.named(node)).replace("POD", &self.named(pod));
            self.kubectl.on(&self.fleet.kubeconfig(member)).ok(&["apply", "-f", "-"], &objects)?;
        }
        for pod in ["one", "two", "three"] {
            self.everywhere().until(&["get", "pod", &self.named(pod)], |out| out.contains("Running"))?;
        }
        Ok(())
    }

    fn named(&self, what: &str) -> String {
        format!("{what}-{}", self.suffix)
    }

    fn through(&self, member: &str) -> Kubectl {
        let path = format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy", self.server);
        self.kubectl.with(&["--server", &path])
    }

    fn everywhere(&self) -> Kubectl {
        self.kubectl.with(&["--server", &format!("{}{EVERYWHERE}", self.server)])
    }

    fn top(&self) -> Result<()> {
        let (one, two, shared) = (self.named("one"), self.named("two"), self.named("shared"));
        let is_of = |line: &str, name: &str| line.split_whitespace().next() == Some(name);
        let rows = |out: &str, name: &str| out.lines().filter(|line| is_of(line, name)).count();
        let member1 = self.through("member1");
        let pods = member1.until(&["top", "pods"], |out| rows(out, &one) == 1)?;
        ensure!(rows(&pods, &two) == 0 && pods.contains("CPU(cores)"), "{pods}");
        let nodes = member1.until(&["top", "nodes"], |out| rows(out, &shared) == 1)?;
        ensure!(nodes.contains("member1-node-1") && !nodes.contains("member2-node-1"), "{nodes}");
        let everywhere = self.everywhere();
        everywhere.until(&["top", "pods"], |out| rows(out, &one) == 1 && rows(out, &two) == 1)?;
        everywhere.until(&["top", "pod", &two, "--containers"], |out| out.contains("nginx"))?;
        let nodes = everywhere.until(&["top", "nodes"], |out| rows(out, &self.named("own")) == 1)?;
        ensure!(nodes.contains("member1-node-1") && nodes.contains("member2-node-1"), "{nodes}");
        everywhere.expect_output(&["top", "pod", "nosuch"], "", 1, "\"nosuch\" not found")?;
        // The control plane serves usage there, with Karmada's error messages.
        let message = format!("nodes \"{shared}\": the node({shared}) found in more than one clusters");
        let path = format!("{EVERYWHERE}/apis/metrics.k8s.io/v1beta1/nodes/{shared}");
        self.kubectl.expect_output(&["get", "--raw", &path], "", 1, &message)?;
        // Exactly one of them.
        let usage = self.kubectl.ok(&["get", "--raw", &format!("{path}?cluster=member2")], "")?;
        ensure!(usage.contains("NodeMetrics") && usage.contains(&shared), "{usage}");
        Ok(())
    }

    /// With its events.
    fn describe(&self) -> Result<()> {
        let (two, own) = (self.named("two"), self.named("own"));
        for kubectl in [self.through("member2"), self.everywhere()] {
            let output = kubectl.until(&["describe", "pod", &two], |out| out.contains("Started container nginx"))?;
            ensure!(output.contains("Events:") && output.contains(&self.named("shared")), "{output}");
            let output = kubectl.ok(&["describe", "node", &own], "")?;
            ensure!(output.contains(&self.named("three")) && output.contains("Allocated resources:"), "{output}");
        }
        let text = "ambiguous objects in clusters [member1, member2]";
        self.everywhere().expect_output(&["describe", "node", &self.named("shared")], "", 1, text)?;
        Ok(())
    }

    fn is_cordoned(&self, member: &str, node: &str) -> Result<bool> {
        let path = ["get", "node", node, "-o", "jsonpath={.spec.unschedulable}"];
        Ok(self.kubectl.on(&self.fleet.kubeconfig(member)).ok(&path, "")? == "true")
    }

    fn drain(&self) -> Result<()> {
        let (shared, own) = (self.named("shared"), self.named("own"));
        let (one, two, three) = (self.named("one"), self.named("two"), self.named("three"));
        let everywhere = self.everywhere();
        let drain = |kubectl: &Kubectl, node: &str, code: i32, text: &str| {
            kubectl.expect_output(&["drain", node, "--force", "--ignore-daemonsets", "--timeout=90s"], "", code, text)
        };
        // Neither of two nodes is changed.
        drain(&everywhere, &shared, 1, "ambiguous objects in clusters [member1, member2]")?;
        ensure!(!self.is_cordoned("member1", &shared)? && !self.is_cordoned("member2", &shared)?);

        drain(&self.through("member1"), &shared, 0, &format!("pod/{one} evicted"))?;
        ensure!(self.is_cordoned("member1", &shared)? && !self.is_cordoned("member2", &shared)?);
        self.through("member1").expect_output(&["get", "pod", &one], "", 1, "not found")?;
        self.through("member2").expect_output(&["get", "pod", &two], "", 0, "Running")?;
        // The same request with a cluster, through the fleet-wide proxy.
        let path = format!("{EVERYWHERE}/api/v1/nodes/{shared}?cluster=");
        let cordoned = |member: &str| -> Result<bool> {
            Ok(self.kubectl.ok(&["get", "--raw", &format!("{path}{member}")], "")?.contains("\"unschedulable\":true"))
        };
        until("the cache to receive it", || cordoned("member1"))?;
        ensure!(!cordoned("member2")?);

        // A name that exists in one member is sufficient.
        everywhere.expect_output(&["cordon", &own], "", 0, &format!("node/{own} cordoned"))?;
        ensure!(self.is_cordoned("member2", &own)?);
        drain(&everywhere, &own, 0, &format!("pod/{three} evicted"))?;
        self.through("member2").expect_output(&["get", "pod", &three], "", 1, "not found")?;
        everywhere.expect_output(&["uncordon", &own], "", 0, &format!("node/{own} uncordoned"))?;
        ensure!(!self.is_cordoned("member2", &own)?);
        Ok(())
    }
}
