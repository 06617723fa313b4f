//! `crowsnest get`: objects of all clusters, as `kubectl get` shows those of one. Without a cluster the fleet-wide proxy is asked,
//! where it tells as much as the members; they themselves otherwise, and where clusters are named.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};

use super::columns::Widths;
use super::connection::ConnectionArgs;
use super::object::is_of_a_cluster;
use super::output::color::ColorArgs;
use super::output::{Format, items};
use super::reach;
use super::search::PARTIAL;
use ask::{Answer, Question, Source};
use kind::Kind;
use table::{Layout, Table};

pub(super) mod ask;
mod follow;
pub(super) mod kind;
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
    after_help = "Examples:\n  crowsnest get pods -n shop\n  crowsnest get deploy -A --clusters all\n  crowsnest get node n1 --cluster member1 -o yaml\n  crowsnest get pods -A -l app=web -w\n  crowsnest get pods -A -o custom-columns=POD:.metadata.name,NODE:.spec.nodeName\n  crowsnest get deploy -s karmada"
)]
pub(crate) struct GetArgs {
    /// What is to be shown: pods, deploy, deployments.apps; or KIND/NAME
    #[arg(value_name = "KIND")]
    kind: String,
    /// One object
    name: Option<String>,
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

    /// The kind's word, and the name.
    fn asked(&self) -> anyhow::Result<(String, Option<String>)> {
        if self.operation_scope == Some(OperationScope::Karmada) && !self.clusters.is_empty() {
            bail!("-s karmada asks the control plane alone, not clusters: -s all asks both");
        }
        let asked = match (self.kind.split_once('/'), &self.name) {
            (None, name) => (self.kind.clone(), name.clone()),
            (Some((kind, name)), None) => (kind.to_owned(), Some(name.to_owned())),
            (Some(_), Some(_)) => bail!("there is no need to name an object besides KIND/NAME"),
        };
        match &asked.1 {
            Some(name) if name.is_empty() || name.contains('/') => bail!("{name:?} is no name of an object"),
            Some(_) if self.all_namespaces => bail!("an object is not named across all namespaces: say which with -n"),
            Some(_) if self.selector.is_some() || self.field_selector.is_some() => {
                bail!("selectors may not be given when an object is named")
            }
            _ => Ok(asked),
        }
    }

    fn as_table(&self) -> bool {
        self.output.as_ref().is_none_or(Format::is_table)
    }
}

/// What is asked of whom, and how it is told.
struct Getting {
    args: GetArgs,
    config: kube::Config,
    control_plane: kube::Client,
    scope: Scope,
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
    let (word, name) = args.asked()?;
    let config = args.connection.config().await?;
    let control_plane = kube::Client::try_from(config.clone())?;
    let scope = args.scope();
    let kind = find_kind(&word, &scope, &config, &control_plane).await?;
    let namespace = (kind.namespaced && !args.all_namespaces)
        .then(|| args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone()));
    let (labels, fields, as_table) = (args.selector.clone(), args.field_selector.clone(), args.as_table());
    let question = Question { kind, namespace, name, labels, fields, as_table };
    let getting = Getting { args, config, control_plane, scope, question };
    let told = getting.tell().await?;
    let printed = getting.print(&told).await;
    match printed {
        Ok(code) => Ok(code),
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    }
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
    Err(anyhow!("no server has a resource type {word:?}{unknown}"))
}

impl Getting {
    /// The fleet-wide proxy shows kinds of other groups by their names alone.
    fn fleet_tells_enough(&self) -> bool {
        self.scope == Scope::Fleet && (!self.question.as_table || self.question.kind.gvr.group.is_empty())
    }

    async fn tell(&self) -> anyhow::Result<Told> {
        if self.fleet_tells_enough() {
            let source = Source { cluster: None, client: reach::fleet(&self.config)? };
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
        let clusters = match &self.scope {
            Scope::Named(named) => named.clone(),
            Scope::ControlPlane(Some(named)) => named.clone(),
            _ => ask::clusters(&self.control_plane).await?,
        };
        let source = |cluster: &String| {
            Ok(Source { cluster: Some(cluster.clone()), client: reach::member(&self.config, cluster)? })
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
        let alone = match &self.scope {
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
        if let (Scope::Fleet, Some(name), [_, _, ..]) = (&self.scope, &self.question.name, answers.as_slice()) {
            let clusters: Vec<&str> = answers.iter().filter_map(|(source, _)| source.cluster.as_deref()).collect();
            let kind = self.question.kind.name();
            bail!("{kind} {name:?} is in clusters [{}]: {CHOOSE}", clusters.join(", "));
        }
        Ok(Told { sources, answers, partial })
    }

    async fn print(&self, told: &Told) -> anyhow::Result<ExitCode> {
        let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
        for warning in told.answers.iter().flat_map(|(_, answer)| &answer.warnings) {
            writeln!(err, "warning: {warning}")?;
        }
        let mut shown = Shown::new(&self.args, &self.question, jiff::Timestamp::now());
        if self.question.as_table || self.args.watch {
            for (source, answer) in &told.answers {
                shown.add(source.cluster.as_deref(), answer);
            }
            if shown.rows == 0 && !self.args.watch && !self.args.ignore_not_found {
                match &self.question.namespace {
                    Some(namespace) => writeln!(err, "No resources found in {namespace} namespace.")?,
                    None => writeln!(err, "No resources found")?,
                }
            }
            shown.flush(&mut out)?;
        } else {
            let all = told.answers.iter().flat_map(|(source, answer)| answer.objects(source.cluster.as_deref()));
            shown.whole(&mut out, all.collect(), self.question.name.is_some())?;
        }
        out.flush()?;
        drop((out, err));
        if self.args.watch {
            return follow::follow(&self.question.watched(), told, shown).await;
        }
        Ok(if told.partial && !self.args.allow_partial { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
    }
}

/// What is printed, in one form from the first line to the last.
struct Shown {
    output: Option<Format>,
    resource: String,
    headers: bool,
    namespaces: bool,
    now: jiff::Timestamp,
    layout: Option<Layout>,
    widths: Widths,
    /// Rows that wait for those they stand together with.
    waiting: Vec<Vec<String>>,
    documents: Vec<Value>,
    rows: usize,
    /// No document was printed yet.
    first: bool,
    painted: bool,
}

impl Shown {
    fn new(args: &GetArgs, question: &Question, now: jiff::Timestamp) -> Self {
        Self {
            output: args.output.clone(),
            resource: question.kind.gvr.resource.to_string(),
            headers: !args.no_headers,
            namespaces: question.kind.namespaced && args.all_namespaces,
            now,
            layout: None,
            widths: Widths::default(),
            waiting: Vec::new(),
            documents: Vec::new(),
            rows: 0,
            first: true,
            painted: args.color.painted(),
        }
    }

    fn add(&mut self, cluster: Option<&str>, answer: &Answer) {
        match self.output {
            None | Some(Format::Wide) => {
                let mut columns = Vec::new();
                for page in &answer.pages {
                    let table = Table::read(page, cluster, &columns, self.now);
                    self.table(&table);
                    columns = table.columns;
                }
            }
            _ => self.documents.extend(answer.objects(cluster)),
        }
    }

    /// The head comes with the first rows.
    fn table(&mut self, table: &Table) {
        if table.rows.is_empty() {
            return;
        }
        self.rows += table.rows.len();
        let (namespaces, wide) = (self.namespaces, matches!(self.output, Some(Format::Wide)));
        let first = self.layout.is_none();
        let layout = self.layout.get_or_insert_with(|| Layout::new(&table.columns, namespaces, wide));
        if first && self.painted {
            self.widths.paint(&layout.head());
        }
        if first && self.headers {
            self.waiting.push(layout.head());
        }
        self.waiting.extend(table.rows.iter().map(|row| layout.row(&table.columns, row)));
    }

    /// Prints what waits. Objects of a watch are documents, one behind the other.
    fn flush(&mut self, out: &mut impl Write) -> anyhow::Result<()> {
        self.widths.write(out, &std::mem::take(&mut self.waiting))?;
        for document in std::mem::take(&mut self.documents) {
            let first = std::mem::take(&mut self.first);
            self.format().next(out, &document, first && self.headers, |object| self.named(object))?;
        }
        Ok(())
    }

    /// Prints objects as one document: the object that was named, or a list.
    fn whole(&self, out: &mut impl Write, mut objects: Vec<Value>, named: bool) -> anyhow::Result<()> {
        let document = match (named, objects.len()) {
            (true, 0) => return Ok(()),
            (true, 1) => objects.remove(0),
            _ => json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects}),
        };
        match &self.output {
            Some(Format::CustomColumns(columns)) => Ok(columns.write(out, items(&document), self.headers)?),
            _ => self.format().print(out, &document, |object| self.named(object)),
        }
    }

    fn format(&self) -> &Format {
        self.output.as_ref().unwrap_or(&Format::Json)
    }

    /// `cluster/namespace/resource/name`, as searches name objects.
    fn named(&self, object: &Value) -> String {
        let of = |path: &str| object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
        let cluster = of("/metadata/annotations/resource.karmada.io~1cached-from-cluster");
        let parts = [cluster, of("/metadata/namespace"), Some(self.resource.as_str()), of("/metadata/name")];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    }
}

pub(super) fn yaml(document: &Value) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(document).context("printing YAML")?;
    Ok(if text.ends_with('\n') { text } else { format!("{text}\n") })
}

#[cfg(test)]
mod tests;
