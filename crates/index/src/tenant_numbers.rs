use hashbrown::HashMap;

use crate::TenantId;

/// Numbers of tenants within one index: slots and policies have 4 bytes for a tenant, whose
/// identity has
/// 16. A number is reused once no slot has it.
#[derive(Debug)]
pub(crate) struct TenantNumbers {
    of: HashMap<TenantId, u32>,
    all: Vec<Numbered>,
    vacant: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Numbered {
    tenant: TenantId,
    slots: u32,
}

impl Default for TenantNumbers {
    fn default() -> Self {
        // Number 0 is always that of no tenant.
        let none = Numbered { tenant: TenantId::NONE, slots: 0 };
        TenantNumbers { of: HashMap::new(), all: vec![none], vacant: Vec::new() }
    }
}

impl TenantNumbers {
    /// The number of a tenant, for one more slot.
    pub fn take(&mut self, tenant: TenantId) -> u32 {
        if tenant == TenantId::NONE {
            return 0;
        }
        let all = &mut self.all;
        let vacant = &mut self.vacant;
        let number = *self.of.entry(tenant).or_insert_with(|| {
            let new = Numbered { tenant, slots: 0 };
            match vacant.pop() {
                Some(number) => {
                    all[number as usize] = new;
                    number
                }
                None => {
                    all.push(new);
                    (all.len() - 1) as u32
                }
            }
        });
        self.all[number as usize].slots += 1;
        number
    }

    /// One slot less has this number.
    pub fn release(&mut self, number: u32) {
        if number == 0 {
            return;
        }
        let numbered = &mut self.all[number as usize];
        numbered.slots -= 1;
        if numbered.slots == 0 {
            self.of.remove(&numbered.tenant);
            // The row of `all` keeps the old tenant until the number is taken again; no slot refers
            // to it.
            self.vacant.push(number);
        }
    }

    /// The number of a tenant that has a slot.
    pub fn get(&self, tenant: TenantId) -> Option<u32> {
        if tenant == TenantId::NONE { Some(0) } else { self.of.get(&tenant).copied() }
    }

    /// The tenant of this number.
    pub fn tenant(&self, number: u32) -> TenantId {
        self.all[number as usize].tenant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_that_differ_in_upper_bits_have_distinct_numbers_and_numbers_are_reused() {
        let mut numbers = TenantNumbers::default();
        let [a, b] = [7, 7 + (1 << 32)].map(TenantId);
        let [first, second, again] = [a, b, a].map(|tenant| numbers.take(tenant));
        assert!(first == again && first != second && first != 0 && second != 0);
        assert_eq!([first, second, 0].map(|number| numbers.tenant(number)), [a, b, TenantId::NONE]);
        numbers.release(first);
        assert_eq!(numbers.get(a), Some(first), "another slot has it");
        numbers.release(again);
        assert_eq!((numbers.get(a), numbers.get(b)), (None, Some(second)));
        (0..1000).for_each(|n| {
            let number = numbers.take(TenantId(100 + n));
            numbers.release(number);
        });
        assert_eq!(numbers.all.len(), 3, "tenants without slots take no memory");
    }
}
