//! One object on a server, a client for it, and memory for both.
#![allow(dead_code)]

use kvtier_s3::{Client, Config, Error, Get};
use kvtier_testkit::s3::Server;

use super::{Memory, config, no_task_is_left, pattern, server, soon};

pub struct Scene {
    pub server: Server,
    pub client: Client,
    pub memory: Memory,
    /// The object `k`.
    pub bytes: Vec<u8>,
}

impl Scene {
    /// With an object of `len` bytes.
    pub fn of(len: usize) -> Self {
        Scene::with(len, |_| {})
    }

    /// And a client with other settings.
    pub fn with(len: usize, change: impl FnOnce(&mut Config)) -> Self {
        let server = server(|_| {});
        let mut config = config(&server);
        change(&mut config);
        let bytes = pattern(len);
        server.put_object("k", bytes.clone());
        Scene { client: Client::new(config), server, memory: Memory::new(), bytes }
    }

    /// Gets the object; the bytes must be right, and the memory around them untouched.
    pub async fn get(&self) -> Result<(), Error> {
        let len = self.bytes.len();
        let (mut lease, mut guard) = self.memory.lease(len + 4096).split_at(len);
        guard.as_host_mut().unwrap().fill(0x5A);
        let result = self.client.get("k", &mut lease, &Get::default()).await;
        assert!(
            guard.as_host_mut().unwrap().iter().all(|byte| *byte == 0x5A),
            "a byte landed outside"
        );
        match result {
            Ok(object) => {
                assert_eq!(object.unwrap().len(), len as u64);
                assert!(lease.as_host().unwrap() == self.bytes, "wrong bytes");
                Ok(())
            }
            Err(e) => {
                assert_eq!(lease.init_len(), 0);
                Err(e)
            }
        }
    }

    /// Nothing is left of it all.
    pub async fn end(self) {
        assert!(self.memory.is_whole(), "memory leaked");
        drop(self.client);
        soon("all connections are closed", || self.server.connections() == 0).await;
        no_task_is_left().await;
    }
}
