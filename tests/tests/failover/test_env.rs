//! Simulated members in this process, a control plane in another one, and a task that continuously checks the members'
//! stores.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crowsnest_sim::member::{Member, MemberConfig};
use crowsnest_tests::{Fleet, WAIT_TIMEOUT, pause};
use futures::future::try_join_all;
use http::Request;
use jiff::Timestamp;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::crash::write::{Write, client, retry, write_all};
use crate::failover::agent::Agent;
use crate::failover::clock::Clock;
use crate::failover::fault::Fault;
use crate::failover::state::{self, ControlPlaneState, Copies, CopyReader, Members};
use crate::failover::workload::Workload;

/// Timeout for states that need evictions: if half of the fleet fails at the same time, its workloads are evicted one after
/// another. While a busy machine lets further members miss their probes, evictions are slowed down or halted.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(600);

const OBJECTS: &str = include_str!("fleet.yaml");
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Flags of the control plane: all kinds of eviction, with short periods.
const FLAGS: [&str; 7] = [
    "--feature-gates=Failover=true",
    "--enable-no-execute-taint-eviction",
    "--allow-no-execute-taint-policy",
    "--cluster-status-update-frequency=2s",
    "--cluster-failure-threshold=3s",
    "--cluster-success-threshold=3s",
    "--no-members",
];

/// Results of the continuous checks so far.
#[derive(Debug, Clone, Default)]
struct CheckResults {
    /// Number of checks.
    checks: usize,
    /// Copies found by the last check.
    copies: Copies,
    violations: Vec<String>,
}

/// Expected state of the members' stores.
#[derive(Debug, Clone, Default)]
struct Expectations {
    /// Workloads that run.
    workloads: Vec<Workload>,
    /// UIDs by workload and member, if no workload may move or be recreated.
    fixed_uids: Option<BTreeMap<(String, &'static str), String>>,
}

/// Members, the control plane, and the task that checks the members' stores.
pub struct TestEnv {
    pub members: Members,
    pub workloads: Vec<Workload>,
    runtime: Runtime,
    expectations: Arc<watch::Sender<Expectations>>,
    results: watch::Receiver<CheckResults>,
    check_task: JoinHandle<()>,
    /// Tasks that change faults over time.
    progress: JoinSet<()>,
    /// Agents of members that are reached only through them.
    agents: BTreeMap<&'static str, Agent>,
    clock: Clock,
    /// `None` while the control plane is not running.
    control_plane: Option<Fleet>,
    data_dir: PathBuf,
    args: Vec<String>,
    // Dropped last, with its contents.
    dir: tempfile::TempDir,
}

impl TestEnv {
    /// Starts the members, those in `agent_members` behind agents, and the control plane; waits until all workloads
    /// run.
    pub fn start(names: &[&'static str], agent_members: &[&'static str], workloads: Vec<Workload>) -> Result<Self> {
        crate::use_ring();
        let dir = tempfile::tempdir()?;
        let runtime = Runtime::new()?;
        let starting = names.iter().map(|name| Member::start(MemberConfig::new(name)));
        let started = runtime.block_on(try_join_all(starting))?;
        let members: Members = names.iter().copied().zip(started).collect();
        let mut all = Kubeconfig::default();
        for member in members.values() {
            all = all.merge(Kubeconfig::from_yaml(&member.kubeconfig()?)?)?;
        }
        let file = dir.path().join("members.kubeconfig");
        fs::write(&file, serde_json::to_vec_pretty(&all)?)?;
        let push_members: Vec<&str> = names.iter().copied().filter(|name| !agent_members.contains(name)).collect();
        let joined = [format!("--kubeconfig={}", file.display()), format!("--contexts={}", push_members.join(","))];
        let args = FLAGS.map(str::to_owned).into_iter().chain(joined).collect();

        let expectations = Arc::new(watch::Sender::new(Expectations::default()));
        let (sender, results) = watch::channel(CheckResults::default());
        let check_task = runtime.spawn(check_continuously(members.clone(), Arc::clone(&expectations), sender));
        let data_dir = dir.path().join("data");
        let mut env = TestEnv {
            members,
            workloads,
            runtime,
            expectations,
            results,
            check_task,
            progress: JoinSet::new(),
            agents: BTreeMap::new(),
            clock: Clock::new(dir.path())?,
            control_plane: None,
            data_dir,
            args,
            dir,
        };
        env.start_control_plane()?;
        agent_members.iter().try_for_each(|&name| env.start_agent(name))?;
        env.create_workloads()?;
        Ok(env)
    }

    fn start_agent(&mut self, name: &'static str) -> Result<()> {
        let member = self.members.get(name).with_context(|| format!("unknown member {name}"))?;
        let agent = self.runtime.block_on(Agent::start(self.dir.path(), member, self.control_plane()?))?;
        self.agents.insert(name, agent);
        Ok(())
    }

    pub fn start_control_plane(&mut self) -> Result<()> {
        let started_at = Instant::now();
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        self.control_plane = Some(Fleet::start_with_env(&self.data_dir, &args, &self.clock.environment())?);
        self.agents.values().try_for_each(|agent| agent.set_control_plane(self.control_plane()?))?;
        eprintln!("{:?}: the start took {:.1?}", self.members.keys().next(), started_at.elapsed());
        Ok(())
    }

    pub fn kill_control_plane(&mut self) -> Result<()> {
        self.control_plane.take().context("the control plane is not running")?.kill()
    }

    /// Suspends the control plane with SIGSTOP for a number of checks.
    pub fn suspend_control_plane(&mut self, checks: usize) -> Result<()> {
        self.control_plane()?.signal("STOP")?;
        self.wait_for_checks(checks)?;
        self.control_plane()?.signal("CONT")
    }

    /// Sets the offset of the control plane's wall clock in seconds.
    pub fn set_clock(&self, offset: i64) -> Result<()> {
        self.clock.set_offset(offset)?;
        let server_time = self.runtime.block_on(retry(|| server_time(self.kubeconfig())))?;
        let actual = server_time.as_second() - Timestamp::now().as_second();
        // The preloaded library must have an effect; otherwise the test would prove nothing.
        ensure!((actual - offset).abs() < 60, "the control plane is {actual} s ahead, not {offset}");
        Ok(())
    }

    fn control_plane(&self) -> Result<&Fleet> {
        self.control_plane.as_ref().context("the control plane is not running")
    }

    /// Creates the workloads, waits until they run, and starts checking them.
    fn create_workloads(&mut self) -> Result<()> {
        let mut writes = Vec::new();
        for object in serde_saphyr::from_multiple::<Value>(OBJECTS)? {
            let name = object["metadata"]["name"].as_str().context("an object has no name")?;
            let path = match object["kind"].as_str() {
                Some("Namespace") => format!("/api/v1/namespaces/{name}"),
                _ => format!("/apis/policy.karmada.io/v1alpha1/clustertaintpolicies/{name}"),
            };
            writes.push(Write { path, body: Some(object) });
        }
        writes.extend(self.workloads.iter().flat_map(Workload::creation_requests));
        // Before a cluster is ready, its workloads would be scheduled elsewhere.
        self.wait_until("all members to be registered", |state, _| {
            let reasons = state.condition_reasons("Ready");
            let is_missing = |name: &&&str| reasons.get(**name) != Some(&"ClusterReady");
            self.members.keys().filter(is_missing).map(|name| (*name).to_owned()).collect()
        })?;
        let kubeconfig = self.kubeconfig();
        let (acknowledged, _) = watch::channel(0);
        self.runtime.block_on(write_all(&kubeconfig, vec![writes], acknowledged))?;
        self.wait_until_settled()?;
        let workloads = self.workloads.clone();
        self.expectations.send_modify(|expectations| expectations.workloads = workloads);
        Ok(())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("kubeconfigs/cp.kubeconfig")
    }

    /// Starts a fault of one member.
    pub fn inject(&mut self, fault: Fault, member: &str) -> Result<()> {
        self.inject_into_all(fault, &[member])
    }

    /// Starts a fault of several members at the same time. A partition of a member behind an agent cuts the agent's
    /// connection to the control plane.
    pub fn inject_into_all(&mut self, fault: Fault, names: &[&str]) -> Result<()> {
        let mut faulty = Vec::new();
        for name in names {
            match self.agents.get(name).filter(|_| fault == Fault::Partition) {
                Some(agent) => agent.set_cut(true),
                None => faulty.push(self.members.get(name).with_context(|| format!("unknown member {name}"))?),
            }
        }
        self.runtime.block_on(async {
            try_join_all(faulty.iter().map(|member| fault.inject(member))).await?;
            faulty.iter().filter_map(|member| fault.progress(member)).for_each(|progress| {
                self.progress.spawn(progress);
            });
            Ok(())
        })
    }

    /// Ends all faults of all members.
    pub fn end_faults(&mut self) -> Result<()> {
        let started_at = Instant::now();
        self.agents.values().for_each(|agent| agent.set_cut(false));
        self.runtime.block_on(async {
            self.progress.shutdown().await;
            try_join_all(self.members.values().map(Fault::end_all)).await.map(drop)
        })?;
        eprintln!("{:?}: ending the faults took {:.1?}", self.members.keys().next(), started_at.elapsed());
        Ok(())
    }

    /// Current state of the control plane and of the members' stores.
    pub fn read_state(&self) -> Result<(ControlPlaneState, Copies)> {
        self.runtime.block_on(retry(|| async {
            let client = client(&self.kubeconfig(), None).await?;
            Ok((ControlPlaneState::read(&client).await?, state::read_copies(&self.members).await?))
        }))
    }

    /// Waits until `differences` returns none; reports them on timeout. Fails as soon as a check finds a violated
    /// invariant.
    pub fn wait_until(
        &self,
        what: &str,
        differences: impl Fn(&ControlPlaneState, &Copies) -> Vec<String>,
    ) -> Result<()> {
        let started_at = Instant::now();
        loop {
            self.ensure_no_violations().with_context(|| format!("while waiting for {what}"))?;
            let read_at = Instant::now();
            let (state, copies) = self.read_state()?;
            let found = differences(&state, &copies);
            if found.is_empty() {
                eprintln!("{:?}: {what} took {:.1?}", self.members.keys().next(), started_at.elapsed());
                return Ok(());
            }
            if started_at.elapsed() > EVICTION_TIMEOUT {
                let (clusters, log) = (state.describe_clusters(), self.control_plane()?.log());
                bail!(
                    "timed out after {} s waiting for {what}: {found:#?}\n{clusters:#?}\n{log}",
                    EVICTION_TIMEOUT.as_secs()
                );
            }
            std::thread::park_timeout(pause(started_at.elapsed(), read_at.elapsed()));
        }
    }

    /// Waits until all clusters are ready and all objects are exactly as planned.
    pub fn wait_until_settled(&self) -> Result<()> {
        self.wait_until("everything to be as planned", |state, copies| state.differences(copies, &self.workloads))
    }

    /// Waits for a number of further checks.
    pub fn wait_for_checks(&mut self, count: usize) -> Result<()> {
        let target = self.results.borrow().checks + count;
        let is_done = |results: &CheckResults| results.checks >= target || !results.violations.is_empty();
        let results = &mut self.results;
        let observed = self.runtime.block_on(async move {
            tokio::time::timeout(WAIT_TIMEOUT, results.wait_for(is_done)).await.map(|results| results.is_ok())
        });
        ensure!(observed.context("the members were not checked in time")?, "the members are no longer checked");
        self.ensure_no_violations()
    }

    /// Sets whether moving or recreating a workload counts as a violation from now on.
    pub fn forbid_moves(&self, forbid: bool) -> Result<()> {
        let fixed_uids = match forbid {
            true => Some(state::uids(&self.runtime.block_on(state::read_copies(&self.members))?)),
            false => None,
        };
        self.expectations.send_modify(|expectations| expectations.fixed_uids = fixed_uids);
        Ok(())
    }

    /// Fails if a check has found a violated invariant.
    fn ensure_no_violations(&self) -> Result<()> {
        let results = self.results.borrow();
        if results.violations.is_empty() {
            return Ok(());
        }
        let log = self.control_plane.as_ref().map(Fleet::log).unwrap_or_default();
        bail!("check {} found {:#?}; copies: {:#?}\n{log}", results.checks, results.violations, results.copies)
    }

    pub fn stop(mut self) -> Result<()> {
        self.ensure_no_violations()?;
        let status = self.control_plane.take().context("the control plane is not running")?.stop()?;
        ensure!(status.success(), "the control plane stopped with {status}");
        self.check_task.abort();
        self.runtime.block_on(try_join_all(self.members.values().map(|member| member.stop())))?;
        Ok(())
    }
}

/// Current time of the control plane's wall clock, from the creation timestamp of an object.
async fn server_time(kubeconfig: PathBuf) -> Result<Timestamp> {
    let created = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "time"}});
    let request = Request::post("/api/v1/namespaces/default/configmaps?dryRun=All")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&created)?)?;
    let created: Value = client(&kubeconfig, None).await?.request(request).await?;
    let stamp = created["metadata"]["creationTimestamp"].as_str().context("no time of creation")?;
    stamp.parse().with_context(|| format!("invalid time {stamp}"))
}

/// Checks the members' stores repeatedly and reports the results. Ends when an invariant is violated.
async fn check_continuously(
    members: Members,
    expectations: Arc<watch::Sender<Expectations>>,
    sender: watch::Sender<CheckResults>,
) {
    let mut reader = CopyReader::default();
    loop {
        // Read first: the state must not be older than the expectations.
        let expectations = expectations.borrow().clone();
        let copies = match reader.read(&members).await {
            Ok(copies) => copies.clone(),
            Err(error) => return sender.send_modify(|results| results.violations.push(format!("{error:#}"))),
        };
        let mut violations = state::violations(&copies, &expectations.workloads);
        if let Some(fixed_uids) = &expectations.fixed_uids
            && *fixed_uids != state::uids(&copies)
        {
            violations.push(format!("workloads moved or were recreated; before: {fixed_uids:?}"));
        }
        let is_violated = !violations.is_empty();
        sender.send_modify(|results| *results = CheckResults { checks: results.checks + 1, copies, violations });
        if is_violated {
            return;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
