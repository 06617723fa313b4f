//! Computes page sizes of lists. Pure.

/// Target size of a page in bytes.
const AIM: usize = 2 << 20;
/// Number of objects of the first page, when their size is unknown.
const START: u32 = 50;
/// Minimum number of objects, unless they exceed the size limit.
const LEAST: u32 = 10;
/// Bytes of a page in addition to its objects.
const ENVELOPE: usize = 16 << 10;

/// Limits of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Maximum number of objects.
    pub objects: u32,
    /// Maximum bytes of a page with several objects.
    pub bytes: usize,
    /// Maximum bytes of a single object, which may be larger than a page.
    pub object: usize,
}

/// Size of the next page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub objects: u32,
    /// Maximum number of bytes to read.
    pub bytes: usize,
}

/// Size estimates of a collection's objects.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pages {
    /// Average bytes of an object, weighted towards recent pages.
    average: Option<usize>,
    /// Maximum number of objects after a page that was too large.
    ceiling: Option<u32>,
}

impl Pages {
    pub fn plan(&self, limits: Limits) -> Plan {
        let most = limits.objects.max(1);
        let room = limits.bytes.max(ENVELOPE * 2) - ENVELOPE;
        // 1.5 times the expected size, because pages differ.
        let expected = |objects: u32| {
            let objects = (objects as usize).saturating_mul(3) / 2;
            self.average.unwrap_or_default().saturating_mul(objects)
        };
        let wanted = match self.average {
            None => START,
            Some(average) => u32::try_from(AIM.min(room) / average.max(1)).unwrap_or(u32::MAX).max(LEAST),
        };
        let fit =
            self.average.map_or(most, |average| u32::try_from(room / (average + average / 2).max(1)).unwrap_or(most));
        let objects = wanted.min(most).min(fit).min(self.ceiling.unwrap_or(most)).max(1);
        match objects {
            1 => Plan { objects, bytes: limits.object + ENVELOPE },
            _ => Plan { objects, bytes: expected(objects).max(AIM / 2 * 3).min(room) + ENVELOPE },
        }
    }

    /// Records the size of a complete page.
    pub fn came(&mut self, objects: usize, bytes: usize) {
        if let Some(newest) = bytes.checked_div(objects) {
            let newest = newest.max(1);
            self.average = Some(self.average.map_or(newest, |average| average.midpoint(newest)));
        }
        self.ceiling = self.ceiling.map(|ceiling| ceiling.saturating_mul(2));
    }

    /// Records that a page of this many objects was too large or too slow. False if the page cannot be smaller.
    pub fn failed(&mut self, objects: u32) -> bool {
        self.ceiling = Some((objects / 2).max(1));
        objects > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { objects: 500, bytes: 16 << 20, object: 8 << 20 };

    #[test]
    fn pages_grow_towards_their_aim() {
        let mut pages = Pages::default();
        let first = pages.plan(LIMITS);
        assert_eq!(first, Plan { objects: 50, bytes: (3 << 20) + ENVELOPE });
        pages.came(50, 50 * 1000);
        assert_eq!(pages.plan(LIMITS).objects, 500, "small objects: as many as are allowed");
        let mut pages = Pages::default();
        pages.came(50, 50 * 10_000);
        assert_eq!(pages.plan(LIMITS).objects, 209, "pods: two MiB per page");
        let mut pages = Pages::default();
        pages.came(5, 5 << 20);
        let large = pages.plan(LIMITS);
        assert!(large.objects == LEAST && large.bytes <= LIMITS.bytes, "large ones: {large:?}");
        pages.came(1, 6 << 20);
        assert_eq!(pages.plan(LIMITS).objects, 3, "very large ones: as many as fit");
        assert_eq!(Pages::default().plan(Limits { objects: 7, ..LIMITS }).objects, 7);
    }

    #[test]
    fn pages_shrink_after_a_failure() {
        let mut pages = Pages::default();
        let mut sizes = Vec::new();
        loop {
            let plan = pages.plan(LIMITS);
            sizes.push(plan.objects);
            if !pages.failed(plan.objects) {
                break;
            }
        }
        assert_eq!(sizes, [50, 25, 12, 6, 3, 1]);
        assert_eq!(pages.plan(LIMITS).bytes, LIMITS.object + ENVELOPE, "a single object may be larger than a page");
        pages.came(1, 1000);
        assert_eq!(pages.plan(LIMITS).objects, 2, "the size recovers gradually");
    }

    proptest! {
        #[test]
        fn plans_keep_their_limits(
            objects in 0u32..2000, bytes in 0usize..(32 << 20), object in 0usize..(16 << 20),
            history in prop::collection::vec((any::<bool>(), 0usize..600, 0usize..(64 << 20)), 0..20),
        ) {
            let limits = Limits { objects, bytes, object };
            let mut pages = Pages::default();
            for (came, number, size) in history {
                if came { pages.came(number, size) } else { let _ = pages.failed(pages.plan(limits).objects); }
                let plan = pages.plan(limits);
                prop_assert!(plan.objects >= 1 && plan.objects <= objects.max(1));
                let most = if plan.objects == 1 { object + ENVELOPE } else { bytes.max(ENVELOPE * 2) };
                prop_assert!(plan.bytes <= most, "{plan:?}");
            }
        }
    }
}
