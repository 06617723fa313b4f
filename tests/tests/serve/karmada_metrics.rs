//! Checks Karmada's metrics against the table `karmada.yaml`: each metric is served with its labels and a plausible
//! value, or the table states why it is not.

use std::fmt::Write;

use anyhow::Result;
use serde::Deserialize;

/// An expected metric.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    #[serde(default)]
    labels: Vec<String>,
    /// Part of the labels of the series whose values are added up.
    label_filter: Option<String>,
    /// Minimum of the sum of the values.
    minimum: Option<f64>,
    /// Reason why the metric may be missing in this test.
    idle: Option<String>,
    /// Reason why another process serves the metric.
    elsewhere: Option<String>,
    /// Reason why the metric is not supported.
    missing: Option<String>,
}

/// One sample in the text format of Prometheus.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        Some(Sample { name, labels: labels.strip_suffix('}')?, value: value.parse().ok()? })
    }

    /// True if this is a sample of a metric. For a histogram, only the count is compared.
    fn is_of(&self, metric: &str) -> bool {
        self.name == metric || self.name.strip_suffix("_count") == Some(metric)
    }

    fn label_names(&self) -> Vec<&'a str> {
        let parts = self.labels.split("\",").filter(|part| !part.is_empty());
        parts.filter_map(|part| part.split_once('=')).map(|(name, _)| name).collect()
    }
}

/// Errors in the metrics of several processes, one per line.
pub fn find_errors(metrics: &[String]) -> Result<String> {
    let rows: Vec<Row> = serde_saphyr::from_str(include_str!("karmada.yaml"))?;
    let lines = metrics.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    let samples: Vec<Sample<'_>> = lines.filter_map(Sample::parse).collect();
    let mut errors = String::new();
    for row in &rows {
        let series: Vec<&Sample<'_>> = samples.iter().filter(|sample| sample.is_of(&row.name)).collect();
        let reason = row.missing.as_ref().or(row.elsewhere.as_ref());
        match reason {
            Some(reason) if !series.is_empty() => {
                writeln!(errors, "{} is served, although the table gives a reason why not: {reason}", row.name)?
            }
            Some(_) => continue,
            None if series.is_empty() && row.idle.is_none() => writeln!(errors, "{} is not served", row.name)?,
            None => {}
        }
        if let Some(other) = series.iter().find(|sample| sample.label_names() != row.labels) {
            writeln!(errors, "{} has the labels {}", row.name, other.labels)?;
        }
        if let Some(minimum) = row.minimum {
            let selected =
                series.iter().filter(|sample| sample.labels.contains(row.label_filter.as_deref().unwrap_or_default()));
            let values: Vec<f64> = selected.map(|sample| sample.value).collect();
            if values.is_empty() || values.iter().sum::<f64>() < minimum {
                writeln!(errors, "{} with {:?} is {values:?}", row.name, row.label_filter)?;
            }
        }
    }
    Ok(errors)
}
