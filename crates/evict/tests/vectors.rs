//! The decisions of LMCache's own policies, replayed.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};

use kvtier_evict::{Policy, PolicyKind, SlotInfo};
use serde_json::Value;

#[path = "../../testkit/tests/vectors/load.rs"]
mod load;

use load::cases;

/// Keys as slots: a key has the same slot for ever, and a group for its salt.
struct Driver {
    policy: Box<dyn Policy>,
    slots: HashMap<String, u32>,
    keys: Vec<Value>,
    tracked: Vec<u32>,
    /// Chosen by an earlier call and not removed yet: LMCache takes their removal for
    /// that answer's.
    decided: HashSet<u32>,
}

impl Driver {
    fn new(name: &str) -> Self {
        let kind: PolicyKind = name.parse().unwrap();
        Driver {
            policy: kind.build_compat(),
            slots: HashMap::new(),
            keys: Vec::new(),
            tracked: Vec::new(),
            decided: HashSet::new(),
        }
    }

    fn slot(&mut self, key: &Value) -> u32 {
        let next = self.keys.len() as u32;
        let slot = *self.slots.entry(key.to_string()).or_insert(next);
        if slot == next {
            self.keys.push(key.clone());
        }
        slot
    }

    fn insert(&mut self, key: &Value, how: fn(&mut (dyn Policy + 'static), SlotInfo)) {
        let slot = self.slot(key);
        let group = key[1].as_str().unwrap_or("").bytes().map(u32::from).sum();
        how(
            &mut *self.policy,
            SlotInfo::new(slot, 1).with_tenant(group).with_tag(u64::from(slot) + 1),
        );
        self.decided.remove(&slot);
        if !self.tracked.contains(&slot) {
            self.tracked.push(slot);
        }
    }

    fn remove(&mut self, key: &Value) {
        let slot = self.slot(key);
        let evicted = self.decided.remove(&slot);
        let here = self.tracked.contains(&slot);
        self.tracked.retain(|tracked| *tracked != slot);
        let tag = u64::from(slot) + 1;
        match evicted {
            _ if !here => self.policy.forget(tag),
            true => self.policy.evict(slot, tag),
            false => self.policy.remove(slot),
        }
    }

    /// Up to `n` victims, passing over the `not` ones; all of them stay tracked.
    fn victims(
        &mut self,
        n: usize,
        group: Option<u32>,
        not: impl Fn(&Value) -> bool,
    ) -> Vec<Value> {
        let barred: Vec<u32> =
            self.tracked.iter().copied().filter(|slot| not(&self.keys[*slot as usize])).collect();
        // Places are kept whatever the order of unpinning: for that the order must be the reverse
        // of the search's.
        let order = self.policy.eviction_order();
        barred.iter().for_each(|slot| self.policy.pin(*slot));
        let mut victims = Vec::new();
        while victims.len() < n {
            let next = match group {
                Some(group) => self.policy.tenant_victim(group),
                None => self.policy.victim(),
            };
            let Some(slot) = next else { break };
            self.policy.begin_evict(slot);
            self.decided.insert(slot);
            victims.push(slot);
        }
        for slot in
            order.iter().rev().filter(|slot| barred.contains(slot) || victims.contains(slot))
        {
            self.policy.unpin(*slot);
        }
        victims.into_iter().map(|slot| self.keys[slot as usize].clone()).collect()
    }
}

#[test]
fn policies_of_the_engine_decide_as_lmcache() {
    for case in cases("cache_policies.json") {
        let name = case["in"]["policy"].as_str().unwrap();
        let mut driver = Driver::new(name);
        for (at, op) in case["ops"].as_array().unwrap().iter().enumerate() {
            let whole = format!("{} op {at}: {op}", case["in"]);
            match op["op"].as_str().unwrap() {
                "put" => driver.insert(&op["key"], Policy::insert),
                "hit" => {
                    let slot = driver.slot(&op["key"]);
                    driver.policy.touch(slot);
                }
                "force_evict" => driver.remove(&op["key"]),
                "evict" => {
                    let n = op["n"].as_u64().unwrap() as usize;
                    let victims = driver.victims(n, None, |_| false);
                    assert_eq!(Value::from(victims.clone()), op["result"], "{whole}");
                    victims.iter().for_each(|key| driver.remove(key));
                }
                "toggle_pin" => {
                    let slot = driver.slot(&op["key"]);
                    match op["can_evict"].as_bool().unwrap() {
                        true => driver.policy.unpin(slot),
                        false => driver.policy.pin(slot),
                    }
                }
                other => panic!("{other}: {whole}"),
            }
            let mut ours: Vec<&str> = driver
                .policy
                .eviction_order()
                .iter()
                .filter_map(|slot| driver.keys[*slot as usize].as_str())
                .collect();
            let mut theirs: Vec<&str> =
                op["order"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            ours.sort_unstable();
            theirs.sort_unstable();
            assert_eq!(ours, theirs, "{whole}");
        }
    }
}

#[test]
fn policies_of_the_server_decide_as_lmcache() {
    for case in cases("mp_eviction_policies.json") {
        let name = case["in"]["policy"].as_str().unwrap();
        let mut driver = Driver::new(name);
        for (at, op) in case["ops"].as_array().unwrap().iter().enumerate() {
            let whole = format!("{} op {at}: {op}", case["in"]);
            let keys = op["keys"].as_array().cloned().unwrap_or_default();
            match op["op"].as_str().unwrap() {
                "created" => keys.iter().rev().for_each(|key| driver.insert(key, Policy::insert)),
                "reserved" => keys.iter().rev().for_each(|key| driver.insert(key, Policy::reserve)),
                "touched" => {
                    let slots: Vec<u32> = keys.iter().map(|key| driver.slot(key)).collect();
                    driver.policy.touch_chain(&slots);
                }
                "removed" => keys.iter().for_each(|key| driver.remove(key)),
                "evict" => {
                    let victims = evict(&mut driver, op, name);
                    assert_eq!(Value::from(victims.clone()), op["result"], "{whole}");
                    if op["then_removed"].as_bool().unwrap() {
                        victims.iter().for_each(|key| driver.remove(key));
                    }
                }
                other => panic!("{other}: {whole}"),
            }
            if let Some(arc) = op["arc"].as_object() {
                let order: Vec<Value> = driver
                    .policy
                    .eviction_order()
                    .iter()
                    .map(|s| driver.keys[*s as usize].clone())
                    .collect();
                let theirs: Vec<Value> =
                    ["t1", "t2"].iter().flat_map(|t| arc[*t].as_array().unwrap().clone()).collect();
                assert_eq!(order, theirs, "{whole}");
            }
            if let Some(tracked) = op["tracked"].as_u64() {
                assert_eq!(driver.policy.len() as u64, tracked, "{whole}");
            }
        }
    }
}

/// LMCache's batch: a share of the tracked keys of one salt or of all, at least one if any at all.
fn evict(driver: &mut Driver, op: &Value, name: &str) -> Vec<Value> {
    let ratio = op["ratio"].as_f64().unwrap().clamp(0.0, 1.0);
    let salt = op["cache_salt"].as_str().filter(|_| name == "IsolatedLRU");
    let group = salt.map(|salt| salt.bytes().map(u32::from).sum());
    let mine = |slot: &&u32| salt.is_none_or(|salt| driver.keys[**slot as usize][1] == salt);
    let tracked = driver.tracked.iter().filter(mine).count();
    let wanted = ((tracked as f64 * ratio) as usize).max(usize::from(ratio > 0.0));
    let barred = op["ineligible"].as_array().cloned().unwrap_or_default();
    driver.victims(wanted.min(tracked), group, |key| barred.contains(&key[0]))
}
