//! `crowsnest bench cache`: the cache alone, fed with pods made here.

use std::io::Write;

use anyhow::Context;
use crowsnest_index::IndexOptions;
use crowsnest_index::bench::{self, CacheBench, CacheFigures};

pub(super) async fn run(load: &CacheBench) -> anyhow::Result<()> {
    let scratch = super::scratch();
    let figures = bench::run(IndexOptions::new(&scratch), load).await?;
    std::fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))?;
    print(&mut std::io::stdout().lock(), &figures)
}

fn print(out: &mut impl Write, figures: &CacheFigures) -> anyhow::Result<()> {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let [before, stored, searchable, listed] = figures.rss_bytes.map(mb);
    writeln!(out, "cache/objects {}", figures.objects)?;
    writeln!(out, "cache/ingest {:.0} objects/s", figures.objects_per_second)?;
    writeln!(out, "cache/stored {:.0} ms", figures.stored_in_ms)?;
    writeln!(out, "cache/searchable {:.0} ms", figures.searchable_in_ms)?;
    writeln!(out, "cache/database {:.1} MB", mb(figures.database_bytes))?;
    writeln!(out, "cache/rss-before {before:.1} MB")?;
    writeln!(out, "cache/rss-stored {stored:.1} MB")?;
    writeln!(out, "cache/rss-searchable {searchable:.1} MB")?;
    writeln!(out, "cache/rss-after-two-full-lists {listed:.1} MB")?;
    writeln!(out, "cache/rss-each {:.0} B/object", figures.rss_bytes_per_object)?;
    writeln!(out, "cache/list-all {:.1} ms", figures.list_all_ms)?;
    writeln!(out, "cache/list-500-p50 {:.2} ms", figures.list_500_p50_ms)?;
    writeln!(out, "cache/namespace-and-label-p50 {:.2} ms", figures.namespace_and_label_p50_ms)?;
    writeln!(out, "cache/search-p50 {:.2} ms", figures.search_p50_ms)?;
    writeln!(out, "cache/search-p99 {:.2} ms", figures.search_p99_ms)?;
    Ok(())
}
