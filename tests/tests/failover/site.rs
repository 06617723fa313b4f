//! Simulated members in this process, a control plane in another one, and a task that continuously checks the members'
//! stores.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crowsnest_sim::member::{Member, MemberConfig};
use crowsnest_tests::{Fleet, PATIENCE};
use futures::future::try_join_all;
use http::Request;
use jiff::Timestamp;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::crash::write::{Write, client, write_all};
use crate::failover::agent::Agent;
use crate::failover::clock::Clock;
use crate::failover::fault::Fault;
use crate::failover::look::{self, Copies, Members, Plans};
use crate::failover::workload::Workload;

/// Timeout of evictions: if half of the fleet fails at once, its workloads are evicted one after another.
const LONG_PATIENCE: Duration = Duration::from_secs(300);

const FLEET: &str = include_str!("fleet.yaml");
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Enables all evictions, with short periods.
const STEERING: [&str; 7] = [
    "--feature-gates=Failover=true",
    "--enable-no-execute-taint-eviction",
    "--allow-no-execute-taint-policy",
    "--cluster-status-update-frequency=2s",
    "--cluster-failure-threshold=3s",
    "--cluster-success-threshold=3s",
    "--no-members",
];

/// Result of all checks so far.
#[derive(Debug, Clone, Default)]
struct Seen {
    looks: usize,
    copies: Copies,
    violations: Vec<String>,
}

/// Expectations: running workloads, and those that must not move.
#[derive(Debug, Clone, Default)]
struct Rules {
    workloads: Vec<Workload>,
    unmoved: Option<BTreeMap<(String, &'static str), String>>,
}

pub struct Site {
    pub members: Members,
    pub workloads: Vec<Workload>,
    runtime: Runtime,
    rules: Arc<watch::Sender<Rules>>,
    seen: watch::Receiver<Seen>,
    looking: JoinHandle<()>,
    /// Tasks that increase faults over time.
    progress: JoinSet<()>,
    /// Agents of members that are reached only through them.
    agents: BTreeMap<&'static str, Agent>,
    clock: Clock,
    up: Option<Fleet>,
    data: PathBuf,
    args: Vec<String>,
    // Dropped last, with its contents.
    dir: tempfile::TempDir,
}

impl Site {
    /// Starts members by name, some behind agents, with all workloads running.
    pub fn start(names: &[&'static str], undialled: &[&'static str], workloads: Vec<Workload>) -> Result<Self> {
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
        let dialled: Vec<&str> = names.iter().copied().filter(|name| !undialled.contains(name)).collect();
        let joined = [format!("--kubeconfig={}", file.display()), format!("--contexts={}", dialled.join(","))];
        let args = STEERING.map(str::to_owned).into_iter().chain(joined).collect();

        let rules = Arc::new(watch::Sender::new(Rules::default()));
        let (sender, seen) = watch::channel(Seen::default());
        let looking = runtime.spawn(keep_looking(members.clone(), Arc::clone(&rules), sender));
        let data = dir.path().join("data");
        let mut site = Site {
            members,
            workloads,
            runtime,
            rules,
            seen,
            looking,
            progress: JoinSet::new(),
            agents: BTreeMap::new(),
            clock: Clock::make(dir.path())?,
            up: None,
            data,
            args,
            dir,
        };
        site.start_control_plane()?;
        undialled.iter().try_for_each(|&name| site.start_agent(name))?;
        site.fill()?;
        Ok(site)
    }

    fn start_agent(&mut self, name: &'static str) -> Result<()> {
        let member = self.members.get(name).with_context(|| format!("unknown member {name}"))?;
        let agent = self.runtime.block_on(Agent::start(self.dir.path(), member, self.up()?))?;
        self.agents.insert(name, agent);
        Ok(())
    }

    pub fn start_control_plane(&mut self) -> Result<()> {
        let began = Instant::now();
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        self.up = Some(Fleet::start_in(&self.data, &args, &self.clock.environment())?);
        self.agents.values().try_for_each(|agent| agent.follow(self.up()?))?;
        eprintln!("{:?}: a start took {:.1?}", self.members.keys().next(), began.elapsed());
        Ok(())
    }

    pub fn kill_control_plane(&mut self) -> Result<()> {
        self.up.take().context("the control plane is not running")?.kill()
    }

    /// Sends SIGSTOP, and SIGCONT after a number of checks.
    pub fn freeze_control_plane(&mut self, looks: usize) -> Result<()> {
        self.up()?.signal("STOP")?;
        self.looks(looks)?;
        self.up()?.signal("CONT")
    }

    /// Sets the offset of the control plane's wall clock in seconds.
    pub fn set_clock(&self, ahead: i64) -> Result<()> {
        self.clock.set(ahead)?;
        let server_time = self.runtime.block_on(time_of(&self.kubeconfig()))?;
        let found = server_time.as_second() - Timestamp::now().as_second();
        // Without the preloaded library the test would prove nothing.
        ensure!((found - ahead).abs() < 60, "the control plane is {found} s ahead, not {ahead}");
        Ok(())
    }

    fn up(&self) -> Result<&Fleet> {
        self.up.as_ref().context("the control plane is not running")
    }

    /// Creates the workloads, waits until they run, and starts checking them.
    fn fill(&mut self) -> Result<()> {
        let mut writes = Vec::new();
        for object in serde_saphyr::from_multiple::<Value>(FLEET)? {
            let name = object["metadata"]["name"].as_str().context("a name")?;
            let path = match object["kind"].as_str() {
                Some("Namespace") => format!("/api/v1/namespaces/{name}"),
                _ => format!("/apis/policy.karmada.io/v1alpha1/clustertaintpolicies/{name}"),
            };
            writes.push(Write { path, body: Some(object) });
        }
        writes.extend(self.workloads.iter().flat_map(Workload::writes));
        // Policies must wait for their cluster; otherwise workloads would be placed elsewhere.
        self.until("all members to be registered", |plans, _| {
            let reasons = plans.reasons("Ready");
            let is_away = |name: &&&str| reasons.get(**name) != Some(&"ClusterReady");
            self.members.keys().filter(is_away).map(|name| (*name).to_owned()).collect()
        })?;
        let kubeconfig = self.kubeconfig();
        let (done, _) = watch::channel(0);
        self.runtime.block_on(write_all(&kubeconfig, vec![writes], done))?;
        self.settled()?;
        let workloads = self.workloads.clone();
        self.rules.send_modify(|rules| rules.workloads = workloads);
        Ok(())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.data.join("kubeconfigs/cp.kubeconfig")
    }

    pub fn begin(&mut self, fault: Fault, member: &str) -> Result<()> {
        self.begin_at_once(fault, &[member])
    }

    /// Partitions a member behind an agent by cutting off the agent.
    pub fn begin_at_once(&mut self, fault: Fault, names: &[&str]) -> Result<()> {
        let mut struck = Vec::new();
        for name in names {
            match self.agents.get(name).filter(|_| fault == Fault::Partition) {
                Some(agent) => agent.cut(true),
                None => struck.push(self.members.get(name).with_context(|| format!("unknown member {name}"))?),
            }
        }
        self.runtime.block_on(async {
            try_join_all(struck.iter().map(|member| fault.begin(member))).await?;
            struck.iter().filter_map(|member| fault.progress(member)).for_each(|progress| {
                self.progress.spawn(progress);
            });
            Ok(())
        })
    }

    /// Ends all faults of all members.
    pub fn mend(&mut self) -> Result<()> {
        let began = Instant::now();
        self.agents.values().for_each(|agent| agent.cut(false));
        self.runtime.block_on(async {
            self.progress.shutdown().await;
            try_join_all(self.members.values().map(Fault::end_all)).await.map(drop)
        })?;
        eprintln!("{:?}: mending took {:.1?}", self.members.keys().next(), began.elapsed());
        Ok(())
    }

    /// Current state of the control plane and of the members' stores.
    pub fn look(&self) -> Result<(Plans, Copies)> {
        self.runtime.block_on(async {
            let client = client(&self.kubeconfig(), None).await?;
            Ok((Plans::read(&client).await?, look::copies(&self.members).await?))
        })
    }

    /// Waits for a state of both; reports the differences on timeout. Fails as soon as a check finds a violated
    /// invariant.
    pub fn until(&self, what: &str, missing: impl Fn(&Plans, &Copies) -> Vec<String>) -> Result<()> {
        let began = Instant::now();
        loop {
            self.unviolated().with_context(|| format!("while waiting for {what}"))?;
            let (plans, copies) = self.look()?;
            let missing = missing(&plans, &copies);
            if missing.is_empty() {
                eprintln!("{:?}: {what} took {:.1?}", self.members.keys().next(), began.elapsed());
                return Ok(());
            }
            if began.elapsed() > LONG_PATIENCE {
                let (judged, log) = (plans.judged(), self.up()?.log());
                bail!("waited {} s for {what}: {missing:#?}\n{judged:#?}\n{log}", LONG_PATIENCE.as_secs());
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    /// Waits for the idle state: ready, and exactly as planned.
    pub fn settled(&self) -> Result<()> {
        self.until("everything to be as planned", |plans, copies| plans.differences(copies, &self.workloads))
    }

    /// Waits for a number of further checks.
    pub fn looks(&mut self, count: usize) -> Result<()> {
        let until = self.seen.borrow().looks + count;
        let enough = |seen: &Seen| seen.looks >= until || !seen.violations.is_empty();
        let seen = &mut self.seen;
        let observed = self.runtime.block_on(async move {
            tokio::time::timeout(PATIENCE, seen.wait_for(enough)).await.map(|seen| seen.is_ok())
        });
        ensure!(observed.context("the members were not checked in time")?, "the members are no longer checked");
        self.unviolated()
    }

    /// From now on all objects must stay unchanged and in place, or may move again.
    pub fn hold_still(&self, still: bool) -> Result<()> {
        let unmoved = match still {
            true => Some(look::identities(&self.runtime.block_on(look::copies(&self.members))?)),
            false => None,
        };
        self.rules.send_modify(|rules| rules.unmoved = unmoved);
        Ok(())
    }

    fn unviolated(&self) -> Result<()> {
        let seen = self.seen.borrow();
        if seen.violations.is_empty() {
            return Ok(());
        }
        let log = self.up.as_ref().map(Fleet::log).unwrap_or_default();
        bail!("look {}: {:#?} of {:#?}\n{log}", seen.looks, seen.violations, seen.copies)
    }

    pub fn stop(mut self) -> Result<()> {
        self.unviolated()?;
        let status = self.up.take().context("the control plane is not running")?.stop()?;
        ensure!(status.success(), "it stopped with {status}");
        self.looking.abort();
        self.runtime.block_on(try_join_all(self.members.values().map(|member| member.stop())))?;
        Ok(())
    }
}

/// The control plane's wall clock, from the creation time of an object.
async fn time_of(kubeconfig: &Path) -> Result<Timestamp> {
    let created = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "time"}});
    let request = Request::post("/api/v1/namespaces/default/configmaps?dryRun=All")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&created)?)?;
    let created: Value = client(kubeconfig, None).await?.request(request).await?;
    let stamp = created["metadata"]["creationTimestamp"].as_str().context("no time of creation")?;
    stamp.parse().with_context(|| format!("invalid time {stamp}"))
}

/// Checks repeatedly until an invariant is violated, which is recorded.
async fn keep_looking(members: Members, rules: Arc<watch::Sender<Rules>>, sender: watch::Sender<Seen>) {
    loop {
        // Read the rules first: the state must not be older than they are.
        let rules = rules.borrow().clone();
        let copies = match look::copies(&members).await {
            Ok(copies) => copies,
            Err(error) => return sender.send_modify(|seen| seen.violations.push(format!("{error:#}"))),
        };
        let mut violations = look::violations(&copies, &rules.workloads);
        if let Some(unmoved) = &rules.unmoved
            && *unmoved != look::identities(&copies)
        {
            violations.push(format!("objects moved; before: {unmoved:?}"));
        }
        let ends = !violations.is_empty();
        sender.send_modify(|seen| *seen = Seen { looks: seen.looks + 1, copies, violations });
        if ends {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
