"""Makes the manifest's handler and has it load what the source holds.

Called by the service on a thread that may block; knows nothing of versions, nor of what comes after
loading.
"""

from contextlib import ExitStack
from pathlib import Path

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.source import Source, is_file_handler
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.api.handler import Handler
from batchedmodel_model_server.api.mapped_weights import while_files
from batchedmodel_model_server.batching.declaration import declaration_of
from batchedmodel_model_server.errors import CannotLoad, DeviceLost
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.execution.torch_errors import translated, words
from batchedmodel_model_server.handlers.file_modules import forget
from batchedmodel_model_server.handlers.registry import make_handler
from batchedmodel_model_server.handlers.tokenizer_trial import try_tokenizer
from batchedmodel_model_server.lifecycle.startup import FETCH, IMPORTS, LOAD, StartUp
from batchedmodel_model_server.sources.contents import Content, content_of
from batchedmodel_model_server.sources.folder import model_folder
from batchedmodel_model_server.system.accelerator import look_for_accelerator
from batchedmodel_model_server.system.processor import bound_operators


def load(
    settings: ModelServerSettings, source: Source | None, start: StartUp | None = None
) -> LoadedModel:
    """Make and load the handler; raises `CannotLoad` or `DeviceLost`, whatever happens."""
    start = start or StartUp()
    undo = ExitStack()
    try:
        trust, content = settings.trust, None
        if is_file_handler(settings.handler):
            with start.phase(FETCH):
                content = source_content(settings, source)
        folder = None if content is None else content.folder
        with start.phase(IMPORTS):
            handler = make_handler(settings.handler, dict(settings.parameters), folder, trust=trust)
            undo.callback(forget, type(handler).__module__)
            device = handler.device()
            if not isinstance(device, str):
                raise CannotLoad(
                    f"handler {settings.handler}: device gave {device!r}, not a name such as 'cuda'"
                )
            if type(handler).device is Handler.device:
                look_for_accelerator(settings.accelerator, device)
        if content is None:
            # After the handler where that is elsewhere: its mistakes need not wait for a download.
            with start.phase(FETCH):
                content = source_content(settings, source)
        with start.phase(IMPORTS):
            handler.import_libraries()
            bound_operators()
        with start.phase(LOAD), while_files(stay=content.stays):
            handler.load(content.folder, device)
        loaded = LoadedModel(
            handler=handler,
            declaration=declaration_of(handler),
            device=device,
            idempotent=settings.idempotent and handler.idempotent,
            content=content,
        )
        if handler.text is not None and handler.tokenizer is not None:
            with start.phase(LOAD):
                try_tokenizer(handler.tokenizer)
        # From here on it is what unloads the handler that lets go of its modules.
        undo.pop_all()
        return loaded
    except (CannotLoad, DeviceLost):
        raise
    except InvalidInput as error:
        raise CannotLoad(str(error)) from error
    except BaseException as error:
        failure = translated(error)
        if isinstance(failure, DeviceLost):
            raise failure from error
        # A handler is anybody's code: its failure is the model's state, not the process's end.
        reason = f"handler {settings.handler} failed to load: {words(error)}"
        raise CannotLoad(reason) from error
    finally:
        undo.close()


def source_content(settings: ModelServerSettings, source: Source | None) -> Content:
    """What the source holds now, fetched if need be; raises `CannotLoad`."""
    folder = model_folder(source, Path(settings.cache_folder), trust=settings.trust)
    return content_of(folder, numbered=source is not None and source.path is not None)
