//! Rows of workloads: wanted and ready replicas, what runs in them, how a job went.

use super::view::{Container, CronJob, Job, Template, Workload, conditions, pairs};
use super::{Cell, Printed, unix_seconds};

impl Template<'_> {
    fn names_and_images(&self) -> [Cell; 2] {
        let join = |pick: fn(&Container<'_>) -> String| {
            Cell::text(self.spec.containers.iter().map(pick).collect::<Vec<_>>().join(","))
        };
        [join(|c| c.name.to_string()), join(|c| c.image.as_deref().unwrap_or_default().to_owned())]
    }
}

impl Workload<'_> {
    pub(super) fn print(self, kind: &str) -> Printed {
        let status = &self.status;
        let daemon = kind == "DaemonSet";
        let desired = if daemon { status.desired_number_scheduled } else { self.spec.replicas.unwrap_or(1) };
        let ready = if daemon { status.number_ready } else { status.ready_replicas };
        let mut printed = Printed {
            ready: Some(ready),
            desired: Some(desired),
            images: self.spec.template.spec.images(),
            uses: self.spec.template.spec.uses(),
            ..Printed::default()
        };
        if kind == "ReplicationController" {
            printed.fields = vec![("status.replicas".to_owned(), status.replicas.to_string())];
        }
        conditions(&status.conditions, &mut printed);
        let failing = status.conditions.iter().any(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        let word = match () {
            () if self.metadata.deletion_timestamp.is_some() => "Terminating",
            () if failing => "ReplicaFailure",
            () if ready >= desired => "Ready",
            () => "NotReady",
        };
        printed.status = Some(word.to_owned());
        let age = self.metadata.age();
        let name = self.metadata.cell();
        let [names, images] = self.spec.template.names_and_images();
        let selector = Cell::text(pairs(&self.spec.selector.match_labels));
        let number = Cell::Number;
        let ready_of = Cell::text(format!("{ready}/{desired}"));
        printed.cells = match kind {
            "Deployment" => {
                let updated = Cell::text(status.updated_replicas.to_string());
                let available = Cell::text(status.available_replicas.to_string());
                vec![name, ready_of, updated, available, age, names, images, selector]
            }
            "StatefulSet" => vec![name, ready_of, age, names, images],
            "DaemonSet" => vec![
                name,
                number(desired),
                number(status.current_number_scheduled),
                number(ready),
                number(status.updated_number_scheduled),
                number(status.number_available),
                Cell::text("<none>"),
                age,
                names,
                images,
                selector,
            ],
            _ => vec![name, number(desired), number(status.replicas), number(ready), age, names, images, selector],
        };
        printed
    }
}

impl Job<'_> {
    pub(super) fn print(self) -> Printed {
        let status = &self.status;
        let mut printed = Printed {
            ready: Some(status.succeeded),
            desired: self.spec.completions.or(self.spec.parallelism),
            images: self.spec.template.spec.images(),
            uses: self.spec.template.spec.uses(),
            ..Printed::default()
        };
        conditions(&status.conditions, &mut printed);
        let is = |type_: &str| status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
        let word = match () {
            () if self.metadata.deletion_timestamp.is_some() => "Terminating",
            () if is("Complete") => "Complete",
            () if is("Failed") => "Failed",
            () if is("Suspended") || self.spec.suspend => "Suspended",
            () if is("FailureTarget") => "FailureTarget",
            () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
            () => "Running",
        };
        printed.status = Some(word.to_owned());
        let started = status.start_time.as_deref().and_then(unix_seconds);
        let ended = status.completion_time.as_deref().and_then(unix_seconds);
        let duration = match (started, ended) {
            (None, _) => Cell::text(""),
            (Some(since), None) => Cell::Since { since },
            (Some(start), Some(end)) => Cell::text(super::cells::human_duration(end - start)),
        };
        let completions = match self.spec.completions {
            Some(completions) => format!("{}/{completions}", status.succeeded),
            None => format!("{}/1 of {}", status.succeeded, self.spec.parallelism.unwrap_or(1)),
        };
        let [names, images] = self.spec.template.names_and_images();
        printed.cells = vec![
            self.metadata.cell(),
            Cell::text(word),
            Cell::text(completions),
            duration,
            self.metadata.age(),
            names,
            images,
            Cell::text("<none>"),
        ];
        printed
    }
}

impl CronJob<'_> {
    pub(super) fn print(self) -> Printed {
        let template = &self.spec.job_template.spec.template;
        let [names, images] = template.names_and_images();
        let last = self.status.last_schedule_time.as_deref().and_then(unix_seconds);
        let cells = vec![
            self.metadata.cell(),
            Cell::text(self.spec.schedule.as_ref()),
            Cell::text(self.spec.time_zone.as_deref().unwrap_or("<none>")),
            Cell::text(if self.spec.suspend { "True" } else { "False" }),
            Cell::Number(self.status.active.len() as i64),
            last.map_or_else(|| Cell::text("<none>"), |since| Cell::Since { since }),
            self.metadata.age(),
            names,
            images,
            Cell::text("<none>"),
        ];
        let status = if self.spec.suspend { "Suspended" } else { "Active" };
        Printed {
            status: Some(status.to_owned()),
            images: template.spec.images(),
            uses: template.spec.uses(),
            cells,
            ..Printed::default()
        }
    }
}
