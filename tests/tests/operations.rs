//! Operations with kubectl (top, describe, cordon, drain) in one member through its address and in the whole fleet
//! through the fleet-wide proxy, with every kubectl. Names in several clusters are addressed by cluster.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for, with_each_kubectl};

const REGISTRY: &str = include_str!("operations/fleet.yaml");
const NODE: &str = include_str!("operations/node.yaml");
const FLEET_PROXY: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";

/// A kubectl, and the objects that are created for it in both members.
struct Operator<'a> {
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
        kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    }
    with_each_kubectl(&fleet, |kubectl| {
        let suffix = kubectl.version.replace('.', "-");
        let operator = Operator { fleet: &fleet, kubectl, server: &server, suffix };
        operator.create_objects()?;
        operator.check_top().context("top")?;
        operator.check_describe().context("describe")?;
        operator.check_drain().context("drain")
    })?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

impl Operator<'_> {
    /// Creates a node of the same name in both members, another node in the second, and a pod on each node.
    fn create_objects(&self) -> Result<()> {
        for (member, node, pod) in
            [("member1", "shared", "one"), ("member2", "shared", "two"), ("member2", "own", "three")]
        {
            let objects = NODE.replace("NODE", &self.unique_name(node)).replace("POD", &self.unique_name(pod));
            self.kubectl.with_kubeconfig(&self.fleet.kubeconfig(member)).run_ok(&["apply", "-f", "-"], &objects)?;
        }
        for pod in ["one", "two", "three"] {
            self.via_fleet().run_until(&["get", "pod", &self.unique_name(pod)], |out| out.contains("Running"))?;
        }
        Ok(())
    }

    /// Name of an object that only this kubectl uses.
    fn unique_name(&self, name: &str) -> String {
        format!("{name}-{}", self.suffix)
    }

    fn via_member(&self, member: &str) -> Kubectl {
        let path = format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy", self.server);
        self.kubectl.with_flags(&["--server", &path])
    }

    fn via_fleet(&self) -> Kubectl {
        self.kubectl.with_flags(&["--server", &format!("{}{FLEET_PROXY}", self.server)])
    }

    fn check_top(&self) -> Result<()> {
        let (one, two, shared) = (self.unique_name("one"), self.unique_name("two"), self.unique_name("shared"));
        let is_of = |line: &str, name: &str| line.split_whitespace().next() == Some(name);
        let rows = |out: &str, name: &str| out.lines().filter(|line| is_of(line, name)).count();
        let member1 = self.via_member("member1");
        let pods = member1.run_until(&["top", "pods"], |out| rows(out, &one) == 1)?;
        ensure!(rows(&pods, &two) == 0 && pods.contains("CPU(cores)"), "{pods}");
        let nodes = member1.run_until(&["top", "nodes"], |out| rows(out, &shared) == 1)?;
        ensure!(nodes.contains("member1-node-1") && !nodes.contains("member2-node-1"), "{nodes}");
        let via_fleet = self.via_fleet();
        via_fleet.run_until(&["top", "pods"], |out| rows(out, &one) == 1 && rows(out, &two) == 1)?;
        via_fleet.run_until(&["top", "pod", &two, "--containers"], |out| out.contains("nginx"))?;
        let nodes = via_fleet.run_until(&["top", "nodes"], |out| rows(out, &self.unique_name("own")) == 1)?;
        ensure!(nodes.contains("member1-node-1") && nodes.contains("member2-node-1"), "{nodes}");
        via_fleet.expect_output(&["top", "pod", "nosuch"], "", 1, "\"nosuch\" not found")?;
        // The fleet-wide proxy serves usage itself, with Karmada's error messages.
        let message = format!("nodes \"{shared}\": the node({shared}) found in more than one clusters");
        let path = format!("{FLEET_PROXY}/apis/metrics.k8s.io/v1beta1/nodes/{shared}");
        self.kubectl.expect_output(&["get", "--raw", &path], "", 1, &message)?;
        // With a cluster, the name is unambiguous.
        let usage = self.kubectl.run_ok(&["get", "--raw", &format!("{path}?cluster=member2")], "")?;
        ensure!(usage.contains("NodeMetrics") && usage.contains(&shared), "{usage}");
        Ok(())
    }

    fn check_describe(&self) -> Result<()> {
        let (two, own) = (self.unique_name("two"), self.unique_name("own"));
        for kubectl in [self.via_member("member2"), self.via_fleet()] {
            let output =
                kubectl.run_until(&["describe", "pod", &two], |out| out.contains("Started container nginx"))?;
            ensure!(output.contains("Events:") && output.contains(&self.unique_name("shared")), "{output}");
            let output = kubectl.run_ok(&["describe", "node", &own], "")?;
            ensure!(output.contains(&self.unique_name("three")) && output.contains("Allocated resources:"), "{output}");
        }
        let text = "ambiguous objects in clusters [member1, member2]";
        self.via_fleet().expect_output(&["describe", "node", &self.unique_name("shared")], "", 1, text)?;
        Ok(())
    }

    fn is_cordoned(&self, member: &str, node: &str) -> Result<bool> {
        let path = ["get", "node", node, "-o", "jsonpath={.spec.unschedulable}"];
        Ok(self.kubectl.with_kubeconfig(&self.fleet.kubeconfig(member)).run_ok(&path, "")? == "true")
    }

    fn check_drain(&self) -> Result<()> {
        let (shared, own) = (self.unique_name("shared"), self.unique_name("own"));
        let (one, two, three) = (self.unique_name("one"), self.unique_name("two"), self.unique_name("three"));
        let via_fleet = self.via_fleet();
        let drain = |kubectl: &Kubectl, node: &str, code: i32, text: &str| {
            kubectl.expect_output(&["drain", node, "--force", "--ignore-daemonsets", "--timeout=90s"], "", code, text)
        };
        // For an ambiguous name, neither node is changed.
        drain(&via_fleet, &shared, 1, "ambiguous objects in clusters [member1, member2]")?;
        ensure!(!self.is_cordoned("member1", &shared)? && !self.is_cordoned("member2", &shared)?);

        drain(&self.via_member("member1"), &shared, 0, &format!("pod/{one} evicted"))?;
        ensure!(self.is_cordoned("member1", &shared)? && !self.is_cordoned("member2", &shared)?);
        self.via_member("member1").expect_output(&["get", "pod", &one], "", 1, "not found")?;
        self.via_member("member2").expect_output(&["get", "pod", &two], "", 0, "Running")?;
        // The same request with a cluster, through the fleet-wide proxy.
        let path = format!("{FLEET_PROXY}/api/v1/nodes/{shared}?cluster=");
        let is_cordoned_in_fleet = |member: &str| -> Result<bool> {
            Ok(self
                .kubectl
                .run_ok(&["get", "--raw", &format!("{path}{member}")], "")?
                .contains("\"unschedulable\":true"))
        };
        wait_for("the cache to receive the change", || is_cordoned_in_fleet("member1"))?;
        ensure!(!is_cordoned_in_fleet("member2")?);

        // A name that exists in one member is sufficient.
        via_fleet.expect_output(&["cordon", &own], "", 0, &format!("node/{own} cordoned"))?;
        ensure!(self.is_cordoned("member2", &own)?);
        drain(&via_fleet, &own, 0, &format!("pod/{three} evicted"))?;
        self.via_member("member2").expect_output(&["get", "pod", &three], "", 1, "not found")?;
        via_fleet.expect_output(&["uncordon", &own], "", 0, &format!("node/{own} uncordoned"))?;
        ensure!(!self.is_cordoned("member2", &own)?);
        Ok(())
    }
}
