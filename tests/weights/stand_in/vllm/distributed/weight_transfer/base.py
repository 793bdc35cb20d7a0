# SPDX-License-Identifier: Apache-2.0
"""What engines are made of."""

from __future__ import annotations

import abc
from typing import Any


class WeightTransferInitInfo(abc.ABC):  # noqa: B024
    pass


class WeightTransferUpdateInfo(abc.ABC):  # noqa: B024
    pass


class WeightTransferEngine(abc.ABC):
    init_info_cls: type[Any]
    update_info_cls: type[Any]

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.model = model
        self.model_config = vllm_config["model_config"]

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        return self.init_info_cls(**init_dict)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**update_info))

    @abc.abstractmethod
    def init_transfer_engine(self, init_info: Any) -> None: ...

    @abc.abstractmethod
    def start_weight_update(self) -> None: ...

    @abc.abstractmethod
    def finish_weight_update(self) -> None: ...

    @abc.abstractmethod
    def receive_weights(self, update_info: Any) -> None: ...

    @abc.abstractmethod
    def shutdown(self) -> None: ...

    @staticmethod
    @abc.abstractmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None: ...
