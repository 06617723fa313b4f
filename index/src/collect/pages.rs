//! Computes page sizes of lists. Has no side effects.

/// Target size of a page in bytes.
const TARGET_BYTES: usize = 2 << 20;
/// Number of objects of the first page, when their size is unknown.
const INITIAL_OBJECTS: u32 = 50;
/// Minimum number of objects of a page, unless this many would exceed the limit of its bytes.
const MIN_OBJECTS: u32 = 10;
/// Bytes of a page in addition to its objects.
const ENVELOPE_BYTES: usize = 16 << 10;

/// Limits of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageLimits {
    /// Maximum number of objects.
    pub objects: u32,
    /// Maximum bytes of a page with several objects.
    pub bytes: usize,
    /// Maximum bytes of a single object, which may be larger than a page.
    pub object_bytes: usize,
}

/// Size of the next page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageSize {
    pub objects: u32,
    /// Maximum number of bytes to read.
    pub bytes: usize,
}

/// Size estimates of a collection's objects.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PageSizer {
    /// Average bytes of an object, weighted towards recent pages.
    average_bytes: Option<usize>,
    /// Maximum number of objects after a page that was too large.
    max_objects: Option<u32>,
}

impl PageSizer {
    pub fn next_size(&self, limits: PageLimits) -> PageSize {
        let max = limits.objects.max(1);
        let available = limits.bytes.max(ENVELOPE_BYTES * 2) - ENVELOPE_BYTES;
        // 1.5 times the expected size, because pages differ.
        let expected = |objects: u32| {
            let objects = (objects as usize).saturating_mul(3) / 2;
            self.average_bytes.unwrap_or_default().saturating_mul(objects)
        };
        let target = match self.average_bytes {
            None => INITIAL_OBJECTS,
            Some(average) => {
                u32::try_from(TARGET_BYTES.min(available) / average.max(1)).unwrap_or(u32::MAX).max(MIN_OBJECTS)
            }
        };
        let fit = self
            .average_bytes
            .map_or(max, |average| u32::try_from(available / (average + average / 2).max(1)).unwrap_or(max));
        let objects = target.min(max).min(fit).min(self.max_objects.unwrap_or(max)).max(1);
        match objects {
            1 => PageSize { objects, bytes: limits.object_bytes + ENVELOPE_BYTES },
            _ => {
                PageSize { objects, bytes: expected(objects).max(TARGET_BYTES / 2 * 3).min(available) + ENVELOPE_BYTES }
            }
        }
    }

    /// Records the size of a complete page.
    pub fn record_page(&mut self, objects: usize, bytes: usize) {
        if let Some(newest) = bytes.checked_div(objects) {
            let newest = newest.max(1);
            self.average_bytes = Some(self.average_bytes.map_or(newest, |average| average.midpoint(newest)));
        }
        self.max_objects = self.max_objects.map(|max| max.saturating_mul(2));
    }

    /// Records that a page of this many objects was too large or too slow. Returns false if the page cannot be smaller.
    pub fn record_failure(&mut self, objects: u32) -> bool {
        self.max_objects = Some((objects / 2).max(1));
        objects > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: PageLimits = PageLimits { objects: 500, bytes: 16 << 20, object_bytes: 8 << 20 };

    #[test]
    fn pages_grow_towards_the_target_size() {
        let mut pages = PageSizer::default();
        let first = pages.next_size(LIMITS);
        assert_eq!(first, PageSize { objects: 50, bytes: (3 << 20) + ENVELOPE_BYTES });
        pages.record_page(50, 50 * 1000);
        assert_eq!(pages.next_size(LIMITS).objects, 500, "small objects: as many as are allowed");
        let mut pages = PageSizer::default();
        pages.record_page(50, 50 * 10_000);
        assert_eq!(pages.next_size(LIMITS).objects, 209, "pods: two MiB per page");
        let mut pages = PageSizer::default();
        pages.record_page(5, 5 << 20);
        let large = pages.next_size(LIMITS);
        assert!(large.objects == MIN_OBJECTS && large.bytes <= LIMITS.bytes, "large ones: {large:?}");
        pages.record_page(1, 6 << 20);
        assert_eq!(pages.next_size(LIMITS).objects, 3, "very large ones: as many as fit");
        assert_eq!(PageSizer::default().next_size(PageLimits { objects: 7, ..LIMITS }).objects, 7);
    }

    #[test]
    fn pages_shrink_after_a_failure() {
        let mut pages = PageSizer::default();
        let mut sizes = Vec::new();
        loop {
            let plan = pages.next_size(LIMITS);
            sizes.push(plan.objects);
            if !pages.record_failure(plan.objects) {
                break;
            }
        }
        assert_eq!(sizes, [50, 25, 12, 6, 3, 1]);
        assert_eq!(
            pages.next_size(LIMITS).bytes,
            LIMITS.object_bytes + ENVELOPE_BYTES,
            "a single object may be larger than a page"
        );
        pages.record_page(1, 1000);
        assert_eq!(pages.next_size(LIMITS).objects, 2, "the size recovers gradually");
    }

    proptest! {
        #[test]
        fn page_sizes_are_within_their_limits(
            objects in 0u32..2000, bytes in 0usize..(32 << 20), object_bytes in 0usize..(16 << 20),
            history in prop::collection::vec((any::<bool>(), 0usize..600, 0usize..(64 << 20)), 0..20),
        ) {
            let limits = PageLimits { objects, bytes, object_bytes };
            let mut pages = PageSizer::default();
            for (is_complete, number, size) in history {
                if is_complete { pages.record_page(number, size) } else { let _ = pages.record_failure(pages.next_size(limits).objects); }
                let plan = pages.next_size(limits);
                prop_assert!(plan.objects >= 1 && plan.objects <= objects.max(1));
                let max = if plan.objects == 1 { object_bytes + ENVELOPE_BYTES } else { bytes.max(ENVELOPE_BYTES * 2) };
                prop_assert!(plan.bytes <= max, "{plan:?}");
            }
        }
    }
}
