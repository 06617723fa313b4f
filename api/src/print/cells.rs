//! Table cells and the columns they stand in.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// One cell. Times stay times, so that an age can be shown when it is read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    Number(i64),
    Text(String),
    /// Shown as the time since, Unix seconds.
    Since {
        since: i64,
    },
    /// A number with the time since something happened: `3 (5m ago)`.
    Ago {
        count: i64,
        ago: i64,
    },
    Empty,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A time shown as age; unknown when missing.
    pub fn since(seconds: Option<i64>) -> Self {
        seconds.map_or_else(|| Self::text("<unknown>"), |since| Self::Since { since })
    }

    /// As a Table row shows it at `now` (Unix seconds).
    pub fn render(&self, now: i64) -> serde_json::Value {
        match self {
            Self::Number(number) => (*number).into(),
            Self::Text(text) => text.as_str().into(),
            Self::Since { since } => human_duration(now - since).into(),
            Self::Ago { count, ago } => format!("{count} ({} ago)", human_duration(now - ago)).into(),
            Self::Empty => serde_json::Value::Null,
        }
    }
}

/// kubectl's short age: at most two units, fewer when the first is large.
pub fn human_duration(seconds: i64) -> String {
    let duration = SignedDuration::from_secs(seconds);
    let (seconds, minutes, hours) = (duration.as_secs(), duration.as_mins(), duration.as_hours());
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |first: i64, unit: &str, second: i64, small: &str| {
        if second == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{second}{small}") }
    };
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(days, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => two(years, "y", days % 365, "d"),
        _ => format!("{years}y"),
    }
}

/// One column of a kind's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ColumnDefinition {
    pub name: &'static str,
    #[serde(rename = "type")]
    pub type_: &'static str,
    pub format: &'static str,
    pub description: &'static str,
    /// 0 is always shown, 1 only in wide output.
    pub priority: i32,
}

const fn column(name: &'static str, type_: &'static str, priority: i32) -> ColumnDefinition {
    let format = if name.len() == 4 && matches!(name.as_bytes(), b"Name") { "name" } else { "" };
    ColumnDefinition { name, type_, format, description: name, priority }
}

const NAME: ColumnDefinition = column("Name", "string", 0);
const AGE: ColumnDefinition = column("Age", "string", 0);

const POD: &[ColumnDefinition] = &[
    NAME,
    column("Ready", "string", 0),
    column("Status", "string", 0),
    column("Restarts", "string", 0),
    AGE,
    column("IP", "string", 1),
    column("Node", "string", 1),
    column("Nominated Node", "string", 1),
    column("Readiness Gates", "string", 1),
];
const DEPLOYMENT: &[ColumnDefinition] = &[
    NAME,
    column("Ready", "string", 0),
    column("Up-to-date", "string", 0),
    column("Available", "string", 0),
    AGE,
    column("Containers", "string", 1),
    column("Images", "string", 1),
    column("Selector", "string", 1),
];
const REPLICA_SET: &[ColumnDefinition] = &[
    NAME,
    column("Desired", "integer", 0),
    column("Current", "integer", 0),
    column("Ready", "integer", 0),
    AGE,
    column("Containers", "string", 1),
    column("Images", "string", 1),
    column("Selector", "string", 1),
];
const STATEFUL_SET: &[ColumnDefinition] =
    &[NAME, column("Ready", "string", 0), AGE, column("Containers", "string", 1), column("Images", "string", 1)];
const DAEMON_SET: &[ColumnDefinition] = &[
    NAME,
    column("Desired", "integer", 0),
    column("Current", "integer", 0),
    column("Ready", "integer", 0),
    column("Up-to-date", "integer", 0),
    column("Available", "integer", 0),
    column("Node Selector", "string", 0),
    AGE,
    column("Containers", "string", 1),
    column("Images", "string", 1),
    column("Selector", "string", 1),
];
const JOB: &[ColumnDefinition] = &[
    NAME,
    column("Status", "string", 0),
    column("Completions", "string", 0),
    column("Duration", "string", 0),
    AGE,
    column("Containers", "string", 1),
    column("Images", "string", 1),
    column("Selector", "string", 1),
];
const CRON_JOB: &[ColumnDefinition] = &[
    NAME,
    column("Schedule", "string", 0),
    column("Timezone", "string", 0),
    column("Suspend", "string", 0),
    column("Active", "integer", 0),
    column("Last Schedule", "string", 0),
    AGE,
    column("Containers", "string", 1),
    column("Images", "string", 1),
    column("Selector", "string", 1),
];
const SERVICE: &[ColumnDefinition] = &[
    NAME,
    column("Type", "string", 0),
    column("Cluster-IP", "string", 0),
    column("External-IP", "string", 0),
    column("Port(s)", "string", 0),
    AGE,
    column("Selector", "string", 1),
];
const NODE: &[ColumnDefinition] = &[
    NAME,
    column("Status", "string", 0),
    column("Roles", "string", 0),
    AGE,
    column("Version", "string", 0),
    column("Internal-IP", "string", 1),
    column("External-IP", "string", 1),
    column("OS-Image", "string", 1),
    column("Kernel-Version", "string", 1),
    column("Container-Runtime", "string", 1),
];
const EVENT: &[ColumnDefinition] = &[
    column("Last Seen", "string", 0),
    column("Type", "string", 0),
    column("Reason", "string", 0),
    column("Object", "string", 0),
    column("Subobject", "string", 1),
    column("Source", "string", 1),
    column("Message", "string", 0),
    column("First Seen", "string", 1),
    column("Count", "integer", 1),
    ColumnDefinition { name: "Name", type_: "string", format: "name", description: "Name", priority: 1 },
];
const CONFIG_MAP: &[ColumnDefinition] = &[NAME, column("Data", "integer", 0), AGE];
const SECRET: &[ColumnDefinition] = &[NAME, column("Type", "string", 0), column("Data", "integer", 0), AGE];
const NAMESPACE: &[ColumnDefinition] = &[NAME, column("Status", "string", 0), AGE];
const ANY: &[ColumnDefinition] = &[NAME, AGE];

/// The columns kubectl shows for a kind; kinds we have no rule for show name and age.
pub fn table_columns(group: &str, kind: &str) -> &'static [ColumnDefinition] {
    match (group, kind) {
        ("", "Pod") => POD,
        ("apps", "Deployment") => DEPLOYMENT,
        ("apps", "ReplicaSet") | ("", "ReplicationController") => REPLICA_SET,
        ("apps", "StatefulSet") => STATEFUL_SET,
        ("apps", "DaemonSet") => DAEMON_SET,
        ("batch", "Job") => JOB,
        ("batch", "CronJob") => CRON_JOB,
        ("", "Service") => SERVICE,
        ("", "Node") => NODE,
        ("" | "events.k8s.io", "Event") => EVENT,
        ("", "ConfigMap") => CONFIG_MAP,
        ("", "Secret") => SECRET,
        ("", "Namespace") => NAMESPACE,
        _ => ANY,
    }
}
