use tokio::sync::oneshot;

/// The order in which the saves of a batch ask for space: each after the one before, so that the
/// head of a chain gets it.
#[derive(Debug)]
pub struct AdmissionOrder(Option<oneshot::Receiver<()>>, Option<oneshot::Sender<()>>);

impl AdmissionOrder {
    /// One for each save of a batch, in its order.
    pub fn for_batch(saves: usize) -> Vec<AdmissionOrder> {
        // A single save waits for no other.
        if saves == 1 {
            return vec![AdmissionOrder(None, None)];
        }
        let mut before = None;
        let mut place = |_| {
            let (over, next) = oneshot::channel();
            AdmissionOrder(before.replace(next), Some(over))
        };
        (0..saves).map(&mut place).collect()
    }

    /// Waits until the save before has asked, or has ended.
    pub async fn wait(&mut self) {
        if let Some(before) = self.0.take() {
            // Nothing is ever sent: the sender is dropped.
            let _ = before.await;
        }
    }

    /// This save has asked. Dropping it has the same effect.
    pub fn done(&mut self) {
        self.1 = None;
    }
}

/// The orders of one save in its batch.
#[derive(Debug)]
pub struct SaveOrders {
    /// In which it asks for memory to be encoded. An earlier chunk of the batch, which later ones
    /// wait for, never waits for memory that they hold.
    pub memory: AdmissionOrder,
    /// In which it asks for space.
    pub space: AdmissionOrder,
}

impl SaveOrders {
    /// One for each save of a batch, in its order.
    pub fn for_batch(saves: usize) -> impl Iterator<Item = SaveOrders> {
        let orders = AdmissionOrder::for_batch(saves).into_iter();
        let both = orders.zip(AdmissionOrder::for_batch(saves));
        both.map(|(memory, space)| SaveOrders { memory, space })
    }
}
