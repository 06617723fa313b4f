//! Selects the sources of a request and collects their responses: the fleet-wide proxy if its output is sufficient,
//! otherwise its members, and the control plane if selected.

use std::io::Write;

use anyhow::{anyhow, bail};

use super::ask::{self, Answer, Question, Source};
use super::{CONTROL_PLANE, GetArgs, Scope};
use crate::object::is_of_a_cluster;
use crate::output::terminal;
use crate::reach::{self, failure};

/// Next step for a name that exists in several clusters.
const CHOOSE: &str = "choose one with --cluster, or all of them with --clusters all";

/// A request with its scope and output options.
pub(super) struct Getting<'a> {
    pub(super) args: &'a GetArgs,
    pub(super) config: &'a kube::Config,
    pub(super) control_plane: &'a kube::Client,
    pub(super) scope: &'a Scope,
    pub(super) question: Question,
}

/// Collected responses.
pub(super) struct Responses {
    pub(super) sources: Vec<Source>,
    /// Successful responses, in the order of the sources.
    pub(super) answers: Vec<(Source, Answer)>,
    /// True if a source failed, or shows outdated objects.
    pub(super) partial: bool,
}

impl Getting<'_> {
    /// True if the fleet-wide proxy can serve the request; its tables of other groups have the name column only.
    fn fleet_proxy_suffices(&self) -> bool {
        *self.scope == Scope::Fleet && (!self.question.as_table || self.question.kind.gvr.group.is_empty())
    }

    pub(super) async fn collect_responses(&self) -> anyhow::Result<Responses> {
        if self.fleet_proxy_suffices() {
            let source = Source { cluster: None, client: reach::fleet(self.config)? };
            match self.question.ask(&source).await {
                Ok(response) if response.is_of_the_fleet() => {
                    let partial = response.incomplete > 0;
                    return Ok(Responses { sources: vec![source.clone()], answers: vec![(source, response)], partial });
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    bail!("{}: {CHOOSE}", status.message);
                }
                // Without a ResourceRegistry, in an unsynced cache, or for callers with access to single members only,
                // the members are requested instead.
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {}
                Err(error) => return Err(anyhow!("{}", failure(None, &error))),
            }
        }
        self.ask_members().await
    }

    async fn ask_members(&self) -> anyhow::Result<Responses> {
        let clusters = match self.scope {
            Scope::Named(named) => named.clone(),
            Scope::ControlPlane(Some(named)) => named.clone(),
            _ => ask::clusters(self.control_plane).await?,
        };
        let source = |cluster: &String| {
            Ok(Source { cluster: Some(cluster.clone()), client: reach::member(self.config, cluster)? })
        };
        let mut sources: Vec<Source> = clusters.iter().map(source).collect::<anyhow::Result<_>>()?;
        if matches!(self.scope, Scope::ControlPlane(_)) {
            sources.insert(0, Source { cluster: Some(CONTROL_PLANE.to_owned()), client: self.control_plane.clone() });
        }
        let results = self.question.ask_all(&sources).await;
        let (mut answers, mut refused, mut missing) = (Vec::new(), Vec::new(), None);
        for (source, result) in sources.iter().zip(results) {
            match result {
                Ok(response) => answers.push((source.clone(), response)),
                // A cluster without the object or its kind is not an error.
                Err(kube::Error::Api(status)) if status.code == 404 && !is_of_a_cluster(&status) => {
                    missing = Some(kube::Error::Api(status));
                }
                Err(error) => refused.push((source.cluster.clone().unwrap_or_default(), error)),
            }
        }
        let alone = match self.scope {
            Scope::Named(named) => named.len() == 1,
            scope => *scope == Scope::ControlPlane(Some(Vec::new())),
        };
        if let [(cluster, error)] = refused.as_slice()
            && alone
        {
            bail!("{}", failure(Some(cluster).filter(|cluster| *cluster != CONTROL_PLANE).map(String::as_str), error));
        }
        let mut err = terminal::stderr();
        for (cluster, error) in &refused {
            writeln!(err, "warning: {cluster}: {}", reach::reason(error))?;
        }
        let partial = !refused.is_empty();
        if answers.is_empty() && !sources.is_empty() {
            let left_out = refused.into_iter().map(|(cluster, _)| cluster).collect::<Vec<_>>().join(", ");
            let missing = missing.map(|error| match (self.scope, alone) {
                (Scope::Named(named), true) => failure(named.first().map(String::as_str), &error),
                (_, true) => format!("control plane: {}", failure(None, &error)),
                (_, false) => format!("no cluster has it: {}", failure(None, &error)),
            });
            return match (missing, partial) {
                (Some(_), _) if self.args.ignore_not_found => Ok(Responses { sources, answers, partial }),
                (Some(missing), false) => Err(anyhow!("{missing}")),
                (Some(missing), true) => Err(anyhow!("{missing}; results from {left_out} are incomplete")),
                (None, _) => Err(anyhow!("no cluster returned a result: {left_out}")),
            };
        }
        if let (Scope::Fleet, Some(name), [_, _, ..]) = (self.scope, &self.question.name, answers.as_slice()) {
            let clusters: Vec<&str> = answers.iter().filter_map(|(source, _)| source.cluster.as_deref()).collect();
            let kind = self.question.kind.name();
            bail!("{kind} {name:?} is in clusters [{}]; {CHOOSE}", clusters.join(", "));
        }
        Ok(Responses { sources, answers, partial })
    }
}
