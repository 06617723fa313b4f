//! `crowsnest get`: objects of all clusters, as `kubectl get` shows those of one. Without a cluster the fleet-wide proxy is asked,
//! where it tells as much as the members; they themselves otherwise, and where clusters are named.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::Value;

use super::connection::ConnectionArgs;
use super::object::is_of_a_cluster;
use super::output::Format;
use super::output::color::ColorArgs;
use super::reach;
use super::search::PARTIAL;
use ask::{Answer, Question, Source};
use beside::{Beside, SortBy};
use kind::Kind;
use shown::Shown;

pub(super) mod ask;
mod beside;
mod follow;
pub(super) mod kind;
mod shown;
mod table;

/// What the control plane is called beside the members.
const CONTROL_PLANE: &str = "Karmada";
/// What to do about a name that several clusters have.
const CHOOSE: &str = "say which one with --cluster, or take all of them with --clusters all";

/// Whose objects are meant, in karmadactl's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OperationScope {
    /// The control plane's own
    Karmada,
    /// The members'
    Members,
    /// Both
    All,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest get pods -n shop\n  crowsnest get deploy -A --clusters all\n  crowsnest get node n1 --cluster member1 -o yaml\n  crowsnest get pods -A -l app=web -w\n  crowsnest get pods -A -o custom-columns=POD:.metadata.name,NODE:.spec.nodeName\n  crowsnest get deploy,svc -n shop --sort-by .metadata.creationTimestamp\n  crowsnest get deploy -s karmada"
)]
pub(crate) struct GetArgs {
    /// What is to be shown: pods, deploy, deployments.apps, several by comma; or KIND/NAME
    #[arg(value_name = "KIND")]
    kind: String,
    /// These objects; or more of KIND/NAME
    #[arg(value_name = "NAME")]
    name: Vec<String>,
    /// Of this cluster
    #[arg(long, conflicts_with = "clusters")]
    cluster: Option<String>,
    /// Of these clusters, by comma, each asked itself; all of them with `all` [default: the fleet as one cluster]
    #[arg(short = 'C', long, value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Of this namespace [default: that of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// With these labels
    #[arg(short = 'l', long, visible_alias = "labels", conflicts_with = "name")]
    selector: Option<String>,
    /// With these fields
    #[arg(long, conflicts_with = "name")]
    field_selector: Option<String>,
    /// Whose objects: the control plane's, the members' or both [default: members]
    #[arg(short = 's', long, value_enum, value_name = "SCOPE", conflicts_with = "cluster")]
    operation_scope: Option<OperationScope>,
    /// wide, json, yaml, name, jsonpath=TEMPLATE, go-template=TEMPLATE, custom-columns=HEAD:PATH,…
    #[arg(short, long, value_name = "FORMAT", value_parser = Format::of_objects)]
    output: Option<Format>,
    /// Go on with what changes
    #[arg(short, long)]
    watch: bool,
    /// Only what changes
    #[arg(long, conflicts_with = "watch")]
    watch_only: bool,
    /// With what happened: ADDED, MODIFIED or DELETED
    #[arg(long)]
    output_watch_events: bool,
    /// By what this path finds, as .metadata.creationTimestamp
    #[arg(long, value_name = "PATH", value_parser = SortBy::parse)]
    sort_by: Option<SortBy>,
    /// With columns of these labels, by comma
    #[arg(short = 'L', long, value_delimiter = ',', value_name = "LABELS")]
    label_columns: Vec<String>,
    /// With a column of all labels
    #[arg(long)]
    show_labels: bool,
    /// With the kind before each name
    #[arg(long)]
    show_kind: bool,
    /// With metadata.managedFields, in JSON and YAML
    #[arg(long)]
    show_managed_fields: bool,
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    color: ColorArgs,
    /// Exit with 0 when there is no such object
    #[arg(long)]
    ignore_not_found: bool,
    /// Exit with 0 even when clusters were left out
    #[arg(long)]
    allow_partial: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Which clusters are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// As if they were one.
    Fleet,
    All,
    Named(Vec<String>),
    /// The control plane, and these members; without a list all of them.
    ControlPlane(Option<Vec<String>>),
}

impl GetArgs {
    fn scope(&self) -> Scope {
        let named = Some(self.clusters.clone()).filter(|named| !named.is_empty() && named[0] != "all");
        match self.operation_scope {
            Some(OperationScope::Karmada) => return Scope::ControlPlane(Some(Vec::new())),
            Some(OperationScope::All) => return Scope::ControlPlane(named),
            Some(OperationScope::Members) | None => {}
        }
        match (&self.cluster, self.clusters.as_slice()) {
            (Some(cluster), _) => Scope::Named(vec![cluster.clone()]),
            (None, []) => Scope::Fleet,
            (None, [all]) if all == "all" => Scope::All,
            (None, named) => Scope::Named(named.to_vec()),
        }
    }

    /// Kinds' words, each with the name of an object, if any.
    fn asked(&self) -> anyhow::Result<Vec<(String, Option<String>)>> {
        if self.operation_scope == Some(OperationScope::Karmada) && !self.clusters.is_empty() {
            bail!("-s karmada asks the control plane alone, not clusters: -s all asks both");
        }
        let asked: Vec<(String, Option<String>)> = match self.kind.contains('/') {
            true => {
                std::iter::once(&self.kind).chain(&self.name).map(|one| both(one)).collect::<anyhow::Result<_>>()?
            }
            false => {
                let kinds: Vec<&str> = self.kind.split(',').filter(|kind| !kind.is_empty()).collect();
                let of = |kind: &&str| match self.name.as_slice() {
                    [] => vec![((*kind).to_owned(), None)],
                    names => names.iter().map(|name| ((*kind).to_owned(), Some(name.clone()))).collect(),
                };
                kinds.iter().flat_map(of).collect::<Vec<_>>()
            }
        };
        for name in asked.iter().filter_map(|(_, name)| name.as_ref()) {
            match name {
                name if name.is_empty() || name.contains('/') => bail!("{name:?} is no name of an object"),
                _ if self.all_namespaces => bail!("an object is not named across all namespaces: say which with -n"),
                _ if self.selector.is_some() || self.field_selector.is_some() => {
                    bail!("selectors may not be given when an object is named")
                }
                _ => {}
            }
        }
        match asked.as_slice() {
            [] => bail!("{:?} names no kind: `crowsnest api-resources` lists them", self.kind),
            [_, _, ..] if self.follows() => bail!("-w follows one kind, or one object of it"),
            _ if self.output_watch_events && !self.follows() => {
                bail!("--output-watch-events goes with --watch or --watch-only")
            }
            _ if self.show_labels && !self.as_table() => bail!("--show-labels goes with tables, not with -o"),
            _ => Ok(asked),
        }
    }

    fn follows(&self) -> bool {
        self.watch || self.watch_only
    }

    fn beside(&self) -> Beside {
        Beside {
            labels: self.label_columns.clone(),
            all_labels: self.show_labels,
            adoption: matches!(self.output, Some(Format::Wide)),
            sort: self.sort_by.clone(),
        }
    }

    fn as_table(&self) -> bool {
        self.output.as_ref().is_none_or(Format::is_table)
    }
}

/// Of `KIND/NAME`.
fn both(text: &str) -> anyhow::Result<(String, Option<String>)> {
    match text.split_once('/') {
        Some((kind, name)) => Ok((kind.to_owned(), Some(name.to_owned()))),
        None => bail!("{text:?} is no KIND/NAME, as the word before it is"),
    }
}

/// What is asked of whom, and how it is told.
struct Getting<'a> {
    args: &'a GetArgs,
    config: &'a kube::Config,
    control_plane: &'a kube::Client,
    scope: &'a Scope,
    question: Question,
}

/// Who answered.
struct Told {
    sources: Vec<Source>,
    /// Of those who answered, in the order of the sources.
    answers: Vec<(Source, Answer)>,
    /// Somebody was left out, or is not shown as they are.
    partial: bool,
}

pub(crate) async fn run(args: GetArgs) -> anyhow::Result<ExitCode> {
    let asked = args.asked()?;
    let config = args.connection.config().await?;
    let control_plane = kube::Client::try_from(config.clone())?;
    let scope = args.scope();
    let mut gettings = Vec::new();
    for (word, name) in asked {
        let kind = find_kind(&word, &scope, &config, &control_plane).await?;
        let namespace = (kind.namespaced && !args.all_namespaces)
            .then(|| args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone()));
        let (labels, fields, as_table) = (args.selector.clone(), args.field_selector.clone(), args.as_table());
        let with_objects = args.sort_by.is_some();
        let question = Question { kind, namespace, name, labels, fields, as_table, with_objects };
        let (config, control_plane) = (&config, &control_plane);
        gettings.push(Getting { args: &args, config, control_plane, scope: &scope, question });
    }
    match show(&args, &gettings).await {
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        shown => shown,
    }
}

/// One error of several is told, and the rest is shown.
async fn show(args: &GetArgs, gettings: &[Getting<'_>]) -> anyhow::Result<ExitCode> {
    if let [one] = gettings {
        let told = [(one, one.tell().await?)];
        let shown = print(args, &told)?;
        return match (&told, shown) {
            ([(one, told)], Some(shown)) if args.follows() => {
                follow::follow(&one.question.watched(), told, shown).await
            }
            ([(_, told)], _) => Ok(args.code(told.partial)),
        };
    }
    let (mut told, mut failed) = (Vec::new(), false);
    for getting in gettings {
        match getting.tell().await {
            Ok(one) => told.push((getting, one)),
            Err(error) => {
                failed = true;
                writeln!(io::stderr(), "error: {error:#}")?;
            }
        }
    }
    print(args, &told)?;
    let partial = told.iter().any(|(_, told)| told.partial);
    Ok(if failed { ExitCode::FAILURE } else { args.code(partial) })
}

impl GetArgs {
    fn code(&self, partial: bool) -> ExitCode {
        if partial && !self.allow_partial { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS }
    }
}

/// Prints what was told: a table for each kind, or one document. Gives what goes on from there, where it is followed.
fn print(args: &GetArgs, told: &[(&Getting<'_>, Told)]) -> anyhow::Result<Option<Shown>> {
    let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
    let answers = || told.iter().flat_map(|(_, told)| &told.answers);
    for warning in answers().flat_map(|(_, answer)| &answer.warnings) {
        writeln!(err, "warning: {warning}")?;
    }
    let Some((first, _)) = told.first() else { return Ok(None) };
    let now = jiff::Timestamp::now();
    if !args.as_table() && !args.follows() {
        let mut shown = Shown::new(args, &first.question, now);
        for (getting, _) in told {
            let kind = &getting.question.kind;
            shown.resources.insert(kind.kind.clone(), kind.gvr.resource.to_string());
        }
        let all = answers().flat_map(|(source, answer)| answer.objects(source.cluster.as_deref()));
        shown.whole(&mut out, all.collect(), matches!(told, [(one, _)] if one.question.name.is_some()))?;
        out.flush()?;
        return Ok(None);
    }
    let (mut last, mut rows) = (None, 0);
    let kinds: Vec<_> = told.chunk_by(|one, other| one.0.question.kind == other.0.question.kind).collect();
    for of_kind in &kinds {
        let Some((getting, _)) = of_kind.first() else { continue };
        let mut shown = Shown::new(args, &getting.question, now);
        if args.show_kind || kinds.len() > 1 {
            shown.kind = Some(getting.question.kind.singular());
        }
        for (source, answer) in of_kind.iter().flat_map(|(_, told)| &told.answers).filter(|_| !args.watch_only) {
            shown.add(source.cluster.as_deref(), answer);
        }
        if rows > 0 && shown.rows > 0 && args.as_table() {
            writeln!(out)?;
        }
        shown.flush(&mut out)?;
        rows += shown.rows;
        last = Some(shown);
    }
    if rows == 0 && !args.follows() && !args.ignore_not_found {
        match &first.question.namespace {
            Some(namespace) => writeln!(err, "No resources found in {namespace} namespace.")?,
            None => writeln!(err, "No resources found")?,
        }
    }
    out.flush()?;
    Ok(last)
}

pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The control plane knows most kinds; members may have others.
pub(super) async fn find_kind(
    word: &str,
    scope: &Scope,
    config: &kube::Config,
    control_plane: &kube::Client,
) -> anyhow::Result<Kind> {
    let served = crowsnest_fleet::discovery::discover(control_plane).await?;
    if let Some(kind) = Kind::of(word, &served) {
        return Ok(kind);
    }
    let members = match scope {
        Scope::Named(named) => named.clone(),
        Scope::ControlPlane(Some(named)) => named.clone(),
        _ => ask::clusters(control_plane).await?,
    };
    let mut unknown = String::new();
    for cluster in &members {
        match crowsnest_fleet::discovery::discover(&reach::member(config, cluster)?).await {
            Ok(served) => {
                if let Some(kind) = Kind::of(word, &served) {
                    return Ok(kind);
                }
            }
            Err(error) => unknown = format!("; {cluster} could not be asked: {:#}", anyhow!(error)),
        }
    }
    Err(anyhow!("no server has a resource type {word:?}{unknown}; `crowsnest api-resources` lists those there are"))
}

impl Getting<'_> {
    /// The fleet-wide proxy shows kinds of other groups by their names alone.
    fn fleet_tells_enough(&self) -> bool {
        *self.scope == Scope::Fleet && (!self.question.as_table || self.question.kind.gvr.group.is_empty())
    }

    async fn tell(&self) -> anyhow::Result<Told> {
        if self.fleet_tells_enough() {
            let source = Source { cluster: None, client: reach::fleet(self.config)? };
            match self.question.ask(&source).await {
                Ok(answer) if answer.is_of_the_fleet() => {
                    let partial = answer.incomplete > 0;
                    return Ok(Told { sources: vec![source.clone()], answers: vec![(source, answer)], partial });
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    bail!("{}: {CHOOSE}", status.message);
                }
                // Nobody registered it, the cache has not heard of it, or the caller is let in to single members alone.
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {}
                Err(error) => return Err(anyhow!("{}", reach::said(&error))),
            }
        }
        self.ask_members().await
    }

    async fn ask_members(&self) -> anyhow::Result<Told> {
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
        let said = self.question.ask_all(&sources).await;
        let (mut answers, mut refused, mut missing) = (Vec::new(), Vec::new(), None);
        for (source, said) in sources.iter().zip(said) {
            match said {
                Ok(answer) => answers.push((source.clone(), answer)),
                // A cluster without the object, or without its kind, misses nothing.
                Err(kube::Error::Api(status)) if status.code == 404 && !is_of_a_cluster(&status) => {
                    missing = Some(status.message.clone());
                }
                Err(error) => refused.push((source.cluster.clone().unwrap_or_default(), reach::said(&error))),
            }
        }
        let alone = match self.scope {
            Scope::Named(named) => named.len() == 1,
            scope => *scope == Scope::ControlPlane(Some(Vec::new())),
        };
        if let [(_, why)] = refused.as_slice()
            && alone
        {
            bail!("{why}");
        }
        let mut err = io::stderr().lock();
        for (cluster, why) in &refused {
            writeln!(err, "warning: {cluster}: {why}")?;
        }
        let partial = !refused.is_empty();
        if answers.is_empty() && !sources.is_empty() {
            let left_out = refused.into_iter().map(|(cluster, _)| cluster).collect::<Vec<_>>().join(", ");
            return match (missing, partial) {
                (Some(_), _) if self.args.ignore_not_found => Ok(Told { sources, answers, partial }),
                (Some(missing), false) => Err(anyhow!("{missing}")),
                (Some(missing), true) => Err(anyhow!("{missing}; not all is known of {left_out}")),
                (None, _) => Err(anyhow!("no cluster answered: {left_out}")),
            };
        }
        if let (Scope::Fleet, Some(name), [_, _, ..]) = (self.scope, &self.question.name, answers.as_slice()) {
            let clusters: Vec<&str> = answers.iter().filter_map(|(source, _)| source.cluster.as_deref()).collect();
            let kind = self.question.kind.name();
            bail!("{kind} {name:?} is in clusters [{}]: {CHOOSE}", clusters.join(", "));
        }
        Ok(Told { sources, answers, partial })
    }
}

pub(super) fn yaml(document: &Value) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(document).context("printing YAML")?;
    Ok(if text.ends_with('\n') { text } else { format!("{text}\n") })
}

#[cfg(test)]
mod tests;
